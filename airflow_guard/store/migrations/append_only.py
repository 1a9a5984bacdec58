"""Triggers that refuse to change or remove rows of the event table.

Part of version 0001, and so as final as that: a later version that wants other triggers brings its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Callable, Container

log = logging.getLogger(__name__)

# MySQL: 1419 SUPER is needed while the binary log is on, 1227 the same said by managed services,
# 1142 no TRIGGER privilege.
_REFUSED = {1419, 1227, 1142}


def triggers(dialect: sa.Dialect, prefix: str, schema: str | None) -> dict[str, str]:
    """Return the statements that make the event table append-only, by the name of what each creates.

    MySQL and MariaDB have no trigger for TRUNCATE (it takes the DROP privilege), SQLite has no TRUNCATE.
    """
    if dialect.name == "postgresql":
        return _postgres(dialect, prefix, schema)
    if dialect.name == "sqlite":
        return _sqlite(dialect, prefix, schema)
    return _mysql(dialect, prefix, schema)


def create_triggers(
    execute: Callable[[str], object],
    dialect: sa.Dialect,
    prefix: str,
    schema: str | None,
    existing: Container[str] = (),
) -> None:
    """Create the triggers that do not exist.

    MySQL and MariaDB may refuse them to an account that can create tables. The ledger works without, so that
    is a warning that names the grants to set instead.

    :param execute: runs one statement, or writes it into a script.
    :param existing: names of the triggers that are there.
    """
    for name, statement in triggers(dialect, prefix, schema).items():
        if name in existing:
            continue
        try:
            execute(statement)
        except DBAPIError as error:
            if dialect.name not in {"mysql", "mariadb"} or _error_number(error) not in _REFUSED:
                raise
            log.warning(_WITHOUT_TRIGGERS, error.orig, _qualified(dialect, f"{prefix}event", schema))
            return


def existing_triggers(connection: sa.Connection, prefix: str, schema: str | None) -> set[str]:
    """Return the names of the event table's triggers on MySQL or MariaDB."""
    found = connection.execute(
        sa.text(
            "SELECT trigger_name FROM information_schema.triggers "
            "WHERE event_object_schema = COALESCE(:schema, DATABASE()) AND event_object_table = :table"
        ),
        {"schema": schema, "table": f"{prefix}event"},
    )
    return {str(name) for name in found.scalars()}


_WITHOUT_TRIGGERS = (
    "The database refuses to create triggers (%s), so it does not keep %s append-only by itself. Either set "
    "log_bin_trust_function_creators = 1 on the server, give this account the TRIGGER privilege, and run the "
    "migration again; or let grants do it: the accounts that tasks use get SELECT and INSERT on this table, "
    "and SELECT, INSERT, UPDATE and DELETE on the ledger's other tables, each granted by table. A grant on "
    "the whole database would include UPDATE, DELETE and DROP here."
)


def _error_number(error: DBAPIError) -> int:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else 0


def _qualified(dialect: sa.Dialect, name: str, schema: str | None) -> str:
    preparer = dialect.identifier_preparer
    return f"{preparer.quote_schema(schema)}.{preparer.quote(name)}" if schema else preparer.quote(name)


def _message(prefix: str) -> str:
    return f"{prefix}event is append-only: its rows are never changed or removed"


def _postgres(dialect: sa.Dialect, prefix: str, schema: str | None) -> dict[str, str]:
    name = f"{prefix}event_append_only"
    function = _qualified(dialect, name, schema)
    # One trigger for each statement, not row: also one that would change nothing is refused.
    return {
        f"{name}()": f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$\n"
        "BEGIN\n"
        "    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation',\n"
        f"        MESSAGE = '{_message(prefix)}';\n"
        "END\n"
        "$$",
        name: f"CREATE TRIGGER {dialect.identifier_preparer.quote(name)}\n"
        f"BEFORE UPDATE OR DELETE OR TRUNCATE ON {_qualified(dialect, f'{prefix}event', schema)}\n"
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
    }


def _mysql(dialect: sa.Dialect, prefix: str, schema: str | None) -> dict[str, str]:
    table = _qualified(dialect, f"{prefix}event", schema)
    # A body of one statement: no BEGIN … END, so that a script needs no other delimiter.
    return {
        f"{prefix}event_no_{event}": (
            f"CREATE TRIGGER {_qualified(dialect, f'{prefix}event_no_{event}', schema)}\n"
            f"BEFORE {event.upper()} ON {table}\n"
            f"FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{_message(prefix)}'"
        )
        for event in ("update", "delete")
    }


def _sqlite(dialect: sa.Dialect, prefix: str, schema: str | None) -> dict[str, str]:
    table = dialect.identifier_preparer.quote(f"{prefix}event")
    # The third: INSERT OR REPLACE removes the row that is in its way without firing DELETE triggers.
    events = {
        "update": "BEFORE UPDATE ON {table}",
        "delete": "BEFORE DELETE ON {table}",
        "replace": "BEFORE INSERT ON {table}\nWHEN EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id)",
    }
    return {
        f"{prefix}event_no_{event}": (
            f"CREATE TRIGGER {_qualified(dialect, f'{prefix}event_no_{event}', schema)}\n"
            f"{when.format(table=table)}\n"
            f"BEGIN SELECT RAISE(ABORT, '{_message(prefix)}'); END"
        )
        for event, when in events.items()
    }
