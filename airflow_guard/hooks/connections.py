"""One function per connection type: an Airflow connection becomes the ledger's database, or that of a side.

All that the connection says about TLS and authentication counts. PostgreSQL goes through Airflow's own hook;
MySQL and SQLite do not need their providers.
"""

from __future__ import annotations

import hashlib
import json
import ssl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.airflow_compat import AirflowException, AirflowNotFoundException, quiet_copy
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.store.database import LedgerDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow.sdk import Connection

    from airflow_guard.reconciling.sides import Side
    from airflow_guard.store.tables import Tables

MAX_CONNECTIONS = 8


def database_of(
    connection: Connection, tables: Tables | None = None, *, max_connections: int = MAX_CONNECTIONS
) -> LedgerDatabase:
    """Return the ledger's database that a connection names. Nothing is opened yet.

    :param connection: of type ``postgres``, ``mysql`` (also for MariaDB) or ``sqlite``.
    :param max_connections: upper limit for the ledger itself, and again for business transactions.
    :raises ConfigurationError: another type, or the connection lacks something. A retry does not help.
    """
    maker = _MAKERS.get(connection.conn_type or "")
    if maker is None:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} is of type {connection.conn_type!r}. A ledger needs one of "
            "type postgres, mysql (also for MariaDB) or sqlite: correct ledger_conn_id of the operator, or "
            "[airflow_guard] ledger_conn_id."
        )
    url, creator = maker(connection)
    return LedgerDatabase(
        url, tables=tables, name=connection.conn_id, creator=creator, max_connections=max_connections
    )


def engine_of(connection: Connection) -> sa.Engine:
    """Return an engine for the database of a connection, of any type that SQLAlchemy knows.

    It keeps no connection open: a sensor may wait for an hour between two looks.

    :raises ConfigurationError: the connection's hook has no SQLAlchemy engine, or the connection lacks something.
        A retry does not help.
    """
    maker = _MAKERS.get(connection.conn_type or "")
    if maker is None:
        return _engine_of_hook(connection)
    url, creator = maker(connection)
    return sa.create_engine(url, poolclass=sa.NullPool, **({} if creator is None else {"creator": creator}))


@contextmanager
def side_engines(sides: Sequence[Side]) -> Iterator[list[sa.Engine]]:
    """Give an engine for each side; sides of one connection share one, so that they can share a snapshot.

    :raises ConfigurationError: a connection does not exist, or has no engine. A retry does not help.
    """
    engines: dict[str, sa.Engine] = {}
    try:
        for side in sides:
            if side.conn_id not in engines:
                engines[side.conn_id] = _engine_of_side(side.conn_id)
        yield [engines[side.conn_id] for side in sides]
    finally:
        for engine in engines.values():
            engine.dispose()


def _engine_of_side(conn_id: str) -> sa.Engine:
    from airflow.sdk import BaseHook

    try:
        return engine_of(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"There is no connection {conn_id!r}, which a side of the reconciliation names. Create it, or correct "
            "the name."
        ) from error


def _engine_of_hook(connection: Connection) -> sa.Engine:
    what = f"Connection {connection.conn_id!r} is of type {connection.conn_type!r}"
    try:
        hook = connection.get_hook()  # type: ignore[no-untyped-call]
        engine = hook.get_sqlalchemy_engine(engine_kwargs={"poolclass": sa.NullPool})
    except (
        AirflowException,
        AttributeError,
        ImportError,
        NotImplementedError,
        sa.exc.ArgumentError,
    ) as error:
        raise ConfigurationError(
            f"{what}, which gives no SQLAlchemy engine ({error}). A side of a reconciliation needs one: install "
            "the provider and the SQLAlchemy dialect of its database, or use another connection."
        ) from error
    if not isinstance(engine, sa.Engine):
        raise ConfigurationError(f"{what}; its hook gives {type(engine).__name__}, not a SQLAlchemy engine.")
    return engine


def extra_of(connection: Connection) -> dict[str, Any]:
    """Return the extras of a connection.

    Not by ``extra_dejson``, which tells Airflow's supervisor what to mask. The pools of a ledger grow on threads,
    and triggers look at it on threads: a word to the supervisor from there breaks the conversation of Airflow 3.1
    with it, and ends the whole triggerer.
    """
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ConfigurationError(f"The extra of connection {connection.conn_id!r} is not a JSON object.")
    return extra


def asks_airflow(connection: Connection) -> bool:
    """Return whether each login needs another connection of Airflow's, for a token."""
    extra = extra_of(connection)
    return bool(extra.get("iam") or extra.get("azure_conn_id"))


def content_of(connection: Connection) -> str:
    """Return a digest of all that a connection says: another digest is another database."""
    fields = ("conn_type", "host", "login", "password", "schema", "port", "extra")
    said = json.dumps([getattr(connection, name) for name in fields])
    return hashlib.sha256(said.encode()).hexdigest()


def _postgres(connection: Connection) -> tuple[sa.URL, Callable[[], Any]]:
    from airflow.providers.postgres.hooks import postgres

    # A cursor of another kind would give SQLAlchemy rows that it cannot read.
    extra = {name: value for name, value in extra_of(connection).items() if name != "cursor"}
    # Given the connection, the hook does not ask the API server again each time that the pool grows.
    hook = postgres.PostgresHook(connection=quiet_copy(connection, extra))
    driver = "postgresql+psycopg" if getattr(postgres, "USE_PSYCOPG3", False) else "postgresql+psycopg2"

    def connect() -> Any:
        raw = hook.get_conn()
        if getattr(raw, "autocommit", False):
            raw.autocommit = False  # type: ignore[attr-defined]
        return raw

    return _url(driver, connection), connect


def _mysql(connection: Connection) -> tuple[sa.URL, Callable[[], Any]]:
    try:
        import pymysql
        from pymysql.constants import CLIENT
    except ImportError as error:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} is to MySQL or MariaDB, which needs PyMySQL: pip install 'airflow-guard[mysql]'"
        ) from error
    extra = extra_of(connection)
    arguments: dict[str, Any] = {
        "host": connection.host or "localhost",
        "port": connection.port or 3306,
        "user": connection.login or "",
        # PyMySQL encodes text as Latin-1, which not every password is.
        "password": (connection.password or "").encode(),
        "database": connection.schema or None,
        "charset": "utf8mb4",
        # As SQLAlchemy sets it: row counts are of rows found. The ledger decides by them.
        "client_flag": CLIENT.FOUND_ROWS,
        **_mysql_tls(extra, connection.conn_id),
    }
    if extra.get("unix_socket"):
        arguments["unix_socket"] = extra["unix_socket"]
    return _url("mysql+pymysql", connection), lambda: pymysql.connect(**arguments)


def _mysql_tls(extra: Mapping[str, Any], conn_id: str) -> dict[str, Any]:
    """Return PyMySQL's TLS arguments for the extras ``ssl`` and ``ssl_mode`` of a MySQL connection."""
    given = extra.get("ssl") or {}
    if isinstance(given, str):
        given = json.loads(given)
    mode = str(extra.get("ssl_mode") or "").upper()
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    if mode in ("", "PREFERRED"):
        return {"ssl": dict(given)} if given else {}
    if mode == "REQUIRED":
        # Encrypted, and verified as far as there is something to verify with.
        return {"ssl": {"ca": None, **given, "check_hostname": False}}
    if mode == "VERIFY_CA":
        return {"ssl": {"ca": None, **given, "check_hostname": False, "verify_mode": "required"}}
    if mode == "VERIFY_IDENTITY":
        context = ssl.create_default_context(cafile=given.get("ca"))
        if given.get("cert"):
            context.load_cert_chain(given["cert"], keyfile=given.get("key"))
        return {"ssl": context}
    raise ConfigurationError(
        f"Connection {conn_id!r}: ssl_mode={mode} is none of DISABLED, PREFERRED, REQUIRED, VERIFY_CA, "
        "VERIFY_IDENTITY."
    )


def _sqlite(connection: Connection) -> tuple[sa.URL, None]:
    # Airflow's convention is the path in the host field; a connection written as a URI has it in the schema.
    path = (connection.host or connection.schema or "").strip()
    wrong = None
    if not path or ":memory:" in path:
        wrong = "names no file; a ledger in memory forgets what was done"
    elif not Path(path).is_absolute():
        wrong = f"names {path!r}: give an absolute path, or each process looks in its own folder"
    elif not Path(path).parent.is_dir():
        wrong = f"names {path!r}, whose folder does not exist"
    if wrong:
        raise ConfigurationError(
            f"SQLite connection {connection.conn_id!r} {wrong}. The path goes in its host field."
        )
    return sa.URL.create("sqlite", database=path), None


def _url(driver: str, connection: Connection) -> sa.URL:
    """Return a URL for messages and for the choice of dialect; the creator connects, so it needs no
    password."""
    return sa.URL.create(
        driver,
        username=connection.login or None,
        host=connection.host or None,
        port=connection.port or None,
        database=connection.schema or None,
    )


_MAKERS: Mapping[str, Callable[[Any], tuple[sa.URL, Callable[[], Any] | None]]] = {
    "postgres": _postgres,
    "mysql": _mysql,
    "sqlite": _sqlite,
}
