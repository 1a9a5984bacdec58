"""The databases that the suite runs on, and how a test gets an empty one.

A test that takes the fixture ``database`` runs once on every kind. :func:`databases` narrows that::

    @databases(*POSTGRES)
    def test_takes_the_row_lock(database: DatabaseUnderTest) -> None: ...

A kind that cannot be reached is skipped with its reason, and the end of the run lists it as not run.
With ``GUARD_REQUIRE_DATABASES=1`` it fails instead.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import pytest
import sqlalchemy as sa

from demo.postgres import EmbeddedPostgres, EmbeddedPostgresNotInstalled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DatabaseKind = Literal["sqlite", "postgres_embedded", "postgres_server", "mariadb", "postgres_partitioned"]

ALL: tuple[DatabaseKind, ...] = ("sqlite", "postgres_embedded", "postgres_server", "mariadb")
POSTGRES: tuple[DatabaseKind, ...] = ("postgres_embedded", "postgres_server")
# As postgres_embedded, with ledgers that are partitioned: only where a test asks for it.
PARTITIONED: DatabaseKind = "postgres_partitioned"
PARTITIONED_VARIABLE = "GUARD_TEST_PARTITIONED"
"""Set to 1, every ledger that ``new_ledger`` makes on PostgreSQL is partitioned."""
# A setting of the session that the server does not know, and that the tests do.
_PARTITIONED_SETTING = "-cguard_test.partitioned=on"
# Those where several sessions write at the same moment.
SERVERS: tuple[DatabaseKind, ...] = ("postgres_embedded", "postgres_server", "mariadb")

REQUIRE_VARIABLE = "GUARD_REQUIRE_DATABASES"
ONE_POSTGRES_VARIABLE = "GUARD_TEST_ONE_POSTGRES"
POSTGRES_VARIABLE = "GUARD_TEST_POSTGRES_URL"
MYSQL_VARIABLE = "GUARD_TEST_MYSQL_URL"
_POSTGRES_DEFAULT = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
_MYSQL_DEFAULT = "mysql+pymysql://root@127.0.0.1:3306/"


def databases(*kinds: DatabaseKind) -> pytest.MarkDecorator:
    """Run a test only on these kinds of database."""
    unknown = set(kinds) - {*ALL, PARTITIONED}
    if unknown or not kinds:
        msg = f"unknown kinds of database: {sorted(unknown)}; there are {ALL}"
        raise ValueError(msg)
    return pytest.mark.databases(*kinds)


def chosen(kinds: Sequence[DatabaseKind]) -> list[DatabaseKind]:
    """Return the kinds on which a test of these kinds runs.

    With ``GUARD_TEST_ONE_POSTGRES=1`` one version of PostgreSQL is enough, where a test knows two: the lowest versions of
    the libraries meet it there, and ``make test`` has met both servers.
    """
    if os.environ.get(ONE_POSTGRES_VARIABLE, "") in {"", "0"} or "postgres_embedded" not in kinds:
        return list(kinds)
    return [kind for kind in kinds if kind != "postgres_server"]


def not_run(reason: str) -> NoReturn:
    """Skip this test and say why, or fail it where everything is required.

    :param reason: what is missing, and how to provide it.
    """
    if os.environ.get(REQUIRE_VARIABLE, "") not in {"", "0"}:
        pytest.fail(f"required here, but not run: {reason}", pytrace=False)
    pytest.skip(f"not run: {reason}")


def wants_partitions(url: str) -> bool:
    """Whether a ledger in this place is to be partitioned."""
    return _PARTITIONED_SETTING in str(sa.make_url(url).query.get("options", ""))


class DatabaseNotReachable(Exception):
    """A kind of database is not there; the message says why and how to name another."""


@dataclass(frozen=True)
class DatabaseUnderTest:
    """An empty place for tables that belongs to one test.

    :param kind: the kind of database.
    :param url: SQLAlchemy URL; tables without a schema land in the empty place.
    :param schema: the schema behind it, where there is one (PostgreSQL), for statements that name it.
    :param server: where more of the same kind come from.
    """

    kind: DatabaseKind
    url: str
    schema: str | None
    server: DatabaseServer
    _engines: list[sa.Engine] = field(default_factory=list, repr=False)

    def engine(self, **options: Any) -> sa.Engine:
        """Return a new engine, which is disposed of when the test ends.

        :param options: as for :func:`sqlalchemy.create_engine`.
        """
        engine = sa.create_engine(self.url, **options)
        self._engines.append(engine)
        return engine

    def dispose(self) -> None:
        """Close the connections of all engines that :meth:`engine` gave."""
        for engine in self._engines:
            engine.dispose()
        self._engines.clear()

    def airflow_connection(self) -> str:
        """Return the value of an ``AIRFLOW_CONN_…`` variable for this database."""
        url = sa.make_url(self.url)
        if self.kind == "sqlite":
            return json.dumps({"conn_type": "sqlite", "host": url.database})
        query = dict(url.query)
        connection = {
            "conn_type": "mysql" if self.kind == "mariadb" else "postgres",
            "host": query.pop("host", url.host),
            "port": int(query.pop("port", url.port or 0)) or None,
            "login": url.username,
            "password": url.password,
            "schema": url.database,
            "extra": query,
        }
        return json.dumps({name: value for name, value in connection.items() if value is not None})


class DatabaseServer(Protocol):
    """One database server, for the whole test session."""

    kind: DatabaseKind
    description: str

    def fresh(self) -> DatabaseUnderTest:
        """Return an empty place that nobody else uses; it costs milliseconds."""
        ...

    def fresh_database(self) -> DatabaseUnderTest:
        """Return a whole database of its own, for what is set for a database or seen per database."""
        ...

    def drop(self, database: DatabaseUnderTest) -> None:
        """Remove what :meth:`fresh` or :meth:`fresh_database` made."""
        ...

    def close(self) -> None:
        """Remove all that is left, and stop the server if the tests started it."""
        ...


class SqliteServer:
    """Files in a temporary folder."""

    kind: DatabaseKind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.description = f"SQLite {sqlite3.sqlite_version}"

    def fresh(self) -> DatabaseUnderTest:
        path = self._folder / f"{_unique_name()}.db"
        return DatabaseUnderTest(self.kind, f"sqlite:///{path}", None, self)

    def fresh_database(self) -> DatabaseUnderTest:
        return self.fresh()

    def drop(self, database: DatabaseUnderTest) -> None:
        database.dispose()
        path = Path(sa.make_url(database.url).database or "")
        for file in self._folder.glob(f"{path.name}*"):
            file.unlink(missing_ok=True)

    def close(self) -> None:
        pass


class PostgresServer:
    """A database of this session on a server; each test gets a schema in it."""

    def __init__(self, kind: DatabaseKind, url: str, *, stop: Callable[[], None] | None = None) -> None:
        self.kind = kind
        self._admin_url = sa.make_url(url)
        self._stop = stop
        self._databases: set[str] = set()
        version = _answer(self._admin_url, "SHOW server_version", connect_args={"connect_timeout": 5})
        self.description = f"PostgreSQL {version}"
        self._admin = sa.create_engine(self._admin_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        self._session_url = self._create_database()
        # One connection for all the small statements; the schemas are cheap, connections are not.
        self._session = sa.create_engine(self._session_url, isolation_level="AUTOCOMMIT", pool_size=1)

    def fresh(self) -> DatabaseUnderTest:
        schema = _unique_name()
        with self._session.connect() as connection:
            connection.execute(sa.text(f"CREATE SCHEMA {schema}"))
        options = f"-csearch_path={schema}"
        if self.kind == PARTITIONED or os.environ.get(PARTITIONED_VARIABLE, "") not in {"", "0"}:
            options += f" {_PARTITIONED_SETTING}"
        url = self._session_url.update_query_dict({"options": options})
        return DatabaseUnderTest(self.kind, _rendered(url), schema, self)

    def fresh_database(self) -> DatabaseUnderTest:
        return DatabaseUnderTest(self.kind, _rendered(self._create_database()), None, self)

    def drop(self, database: DatabaseUnderTest) -> None:
        database.dispose()
        if database.schema is None:
            self._drop_database(sa.make_url(database.url).database or "")
            return
        with self._session.connect() as connection:
            # A session that a killed test left open would make the drop wait for its locks.
            connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                    "AND pid IN (SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
                    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema)"
                ),
                {"schema": database.schema},
            )
            connection.execute(sa.text(f"DROP SCHEMA IF EXISTS {database.schema} CASCADE"))

    def close(self) -> None:
        with ExitStack() as stack:
            if self._stop is not None:
                stack.callback(self._stop)
            self._session.dispose()
            for name in sorted(self._databases):
                self._drop_database(name)

    def _create_database(self) -> sa.URL:
        name = _unique_name()
        with self._admin.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        self._databases.add(name)
        return self._admin_url.set(database=name)

    def _drop_database(self, name: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        self._databases.discard(name)


class MariaDbServer:
    """A database per test: there are no schemas, and a database costs little."""

    kind: DatabaseKind = "mariadb"

    def __init__(self, url: str) -> None:
        self._admin_url = sa.make_url(url).update_query_dict({"charset": "utf8mb4"})
        self._databases: set[str] = set()
        version = _answer(self._admin_url, "SELECT version()", connect_args={"connect_timeout": 5})
        self.description = f"MySQL or MariaDB {version}"
        self._admin = sa.create_engine(self._admin_url, isolation_level="AUTOCOMMIT", pool_size=1)

    def fresh(self) -> DatabaseUnderTest:
        name = _unique_name()
        with self._admin.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name} CHARACTER SET utf8mb4"))
        self._databases.add(name)
        return DatabaseUnderTest(self.kind, _rendered(self._admin_url.set(database=name)), None, self)

    def fresh_database(self) -> DatabaseUnderTest:
        return self.fresh()

    def drop(self, database: DatabaseUnderTest) -> None:
        database.dispose()
        self._drop_database(sa.make_url(database.url).database or "")

    def close(self) -> None:
        for name in sorted(self._databases):
            self._drop_database(name)
        self._admin.dispose()

    def _drop_database(self, name: str) -> None:
        with self._admin.connect() as connection:
            # A session that a killed test left open would make the drop wait for its locks.
            left_open = connection.execute(
                sa.text("SELECT id FROM information_schema.processlist WHERE db = :name"), {"name": name}
            ).scalars()
            for session in left_open.all():
                with suppress(sa.exc.DBAPIError):  # it may have ended by itself meanwhile
                    connection.execute(sa.text(f"KILL {int(session)}"))
            connection.execute(sa.text(f"DROP DATABASE IF EXISTS {name}"))
        self._databases.discard(name)


class DatabaseServers:
    """The servers of this test session, each started or tried at its first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[DatabaseKind, DatabaseServer] = {}
        self._missing: dict[DatabaseKind, str] = {}

    def get(self, kind: DatabaseKind) -> DatabaseServer:
        """Return the server of a kind.

        :raises DatabaseNotReachable: it is not there.
        """
        if kind in self._missing:
            raise DatabaseNotReachable(self._missing[kind])
        if kind not in self._running:
            try:
                self._running[kind] = self._open(kind)
            except DatabaseNotReachable as error:
                self._missing[kind] = str(error)
                raise
        return self._running[kind]

    def close(self) -> None:
        """Close all servers, also when one of them fails to."""
        with ExitStack() as stack:
            for server in self._running.values():
                stack.callback(server.close)

    def lines(self) -> list[str]:
        """Say what ran and what did not, a line for each kind that a test asked for."""
        ran = {kind: server.description for kind, server in self._running.items()}
        missing = {kind: f"NOT RUN: {reason}" for kind, reason in self._missing.items()}
        found = {**ran, **missing}
        return [f"{kind:<20} {found[kind]}" for kind in (*ALL, PARTITIONED) if kind in found]

    def _open(self, kind: DatabaseKind) -> DatabaseServer:
        if kind == "sqlite":
            return SqliteServer(self._folder)
        if kind in ("postgres_embedded", PARTITIONED):
            return _embedded(kind)
        if kind == "postgres_server":
            return PostgresServer(kind, _from_environment(POSTGRES_VARIABLE, _POSTGRES_DEFAULT))
        return MariaDbServer(_from_environment(MYSQL_VARIABLE, _MYSQL_DEFAULT))


def _embedded(kind: DatabaseKind) -> PostgresServer:
    # A crash of the server loses nothing without fsync, only a crash of the machine does.
    server = EmbeddedPostgres(settings={"fsync": "off", "full_page_writes": "off", "max_connections": "200"})
    try:
        server.start()
    except EmbeddedPostgresNotInstalled as error:
        raise DatabaseNotReachable(str(error)) from error
    try:
        return PostgresServer(kind, server.url(), stop=server.close)
    except BaseException:
        server.close()
        raise


def _from_environment(variable: str, default: str) -> str:
    return os.environ.get(variable) or default


def _answer(url: sa.URL, query: str, *, connect_args: dict[str, Any]) -> str:
    engine = sa.create_engine(url, connect_args=connect_args, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            return str(connection.execute(sa.text(query)).scalar_one())
    except sa.exc.OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        variable = MYSQL_VARIABLE if url.get_backend_name() == "mysql" else POSTGRES_VARIABLE
        msg = f"{url.render_as_string()} does not answer ({reason}); {variable} can name another server"
        raise DatabaseNotReachable(msg) from error


def _rendered(url: sa.URL) -> str:
    return url.render_as_string(hide_password=False)


def _unique_name() -> str:
    return f"guard_test_{os.getpid()}_{secrets.token_hex(6)}"
