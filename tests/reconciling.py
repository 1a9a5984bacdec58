"""Two tables in two databases, for tests that reconcile them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_guard.reconciling.reconciler import reconcile
from airflow_guard.reconciling.rules import Rules
from airflow_guard.reconciling.sides import Side

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_guard.reconciling.comparison import Comparison
    from tests.databases import DatabaseKind, DatabaseServers, DatabaseUnderTest

KINDS: tuple[DatabaseKind, ...] = ("postgres_embedded", "mariadb", "sqlite")
PAIRS = [(source, target) for source in KINDS for target in KINDS]

# What a column of each family is called. Decimals of SQLite are texts: it has no others that are exact.
TYPES: dict[str, dict[str, str]] = {
    "integer": {"postgres": "bigint", "mariadb": "bigint", "sqlite": "integer"},
    "small": {"postgres": "integer", "mariadb": "int", "sqlite": "integer"},
    "text": {"postgres": "varchar(200)", "mariadb": "varchar(200)", "sqlite": "text"},
    "uuid": {"postgres": "uuid", "mariadb": "char(36)", "sqlite": "text"},
    "money": {"postgres": "numeric(14,4)", "mariadb": "decimal(16,6)", "sqlite": "text"},
    "short": {"postgres": "numeric(9,2)", "mariadb": "decimal(9,2)", "sqlite": "text"},
    "numeric": {"postgres": "numeric", "mariadb": "decimal(60,20)", "sqlite": "text"},
    "float": {"postgres": "double precision", "mariadb": "double", "sqlite": "real"},
    "date": {"postgres": "date", "mariadb": "date", "sqlite": "text"},
    "datetime": {"postgres": "timestamp", "mariadb": "datetime(6)", "sqlite": "text"},
    "instant": {"postgres": "timestamptz", "mariadb": "timestamp(6) null", "sqlite": "text"},
    "binary": {"postgres": "bytea", "mariadb": "binary(16)", "sqlite": "blob"},
    "boolean": {"postgres": "boolean", "mariadb": "boolean", "sqlite": "integer"},
}


def column_type(kind: str, family: str) -> str:
    """Return what a database of a kind calls a family of types."""
    return TYPES[family][kind.split("_", maxsplit=1)[0]]


@dataclass
class Place:
    """A database that tables are made in."""

    database: DatabaseUnderTest
    engine: sa.Engine
    made: set[str] = field(default_factory=set)

    def table(self, name: str, columns: dict[str, str], constraint: str = "") -> None:
        """Make a table, once."""
        if name in self.made:
            return
        written = [
            f"{column} {column_type(self.database.kind, family)}" for column, family in columns.items()
        ]
        with self.engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE TABLE {name} ({', '.join([*written, *filter(None, [constraint])])})"
            )
        self.made.add(name)

    def fill(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Replace the rows of a table."""
        values = [dict(zip(columns, row, strict=True)) for row in rows]
        with self.engine.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {name}")
            if values:
                named = ", ".join(f":{column}" for column in columns)
                connection.execute(
                    sa.text(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({named})"), values
                )

    def execute(self, statement: str, **parameters: Any) -> None:
        """Execute a statement and commit."""
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement), parameters)


class Places:
    """One database of each kind, made at its first use."""

    def __init__(self, servers: DatabaseServers) -> None:
        self._servers = servers
        self._places: dict[str, Place] = {}

    def __getitem__(self, kind: DatabaseKind) -> Place:
        if kind not in self._places:
            database = self._servers.get(kind).fresh()
            self._places[kind] = Place(database, database.engine())
        return self._places[kind]

    def close(self) -> None:
        """Drop them."""
        for place in self._places.values():
            place.database.server.drop(place.database)

    def reconcile(
        self, source: DatabaseKind, target: DatabaseKind, rules: Rules | None = None, **more: Any
    ) -> Comparison:
        """Reconcile the table ``s`` of one database with ``t`` of another.

        :param more: parameters for both sides; ``source_side`` or ``target_side`` replace one; ``parameters``.
        """
        parameters = more.pop("parameters", None)
        sides = {name: more.pop(f"{name}_side", None) for name in ("source", "target")}
        return reconcile(
            sides["source"] or Side(conn_id="books", **{"table": "s", **more}),
            sides["target"] or Side(conn_id="bank", **{"table": "t", **more}),
            rules or Rules(),
            source_engine=self[source].engine,
            target_engine=self[target].engine,
            parameters=parameters,
        )
