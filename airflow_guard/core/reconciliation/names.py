"""Names of tables and columns: checked before a statement is built, quoted by the dialect later."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

from airflow_guard.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD = re.compile(r"[^\W\d][\w$]*\Z")
_MAX_LENGTH = 128
_MAX_PARTS = 3


def is_template(text: str) -> bool:
    """Return whether a string is an Airflow template that is not rendered yet."""
    return "{{" in text or "{%" in text


def column_name(name: object, what: str) -> str:
    """Return a column name that is one plain word.

    :param what: where the name was written, for the message.
    :raises ConfigurationError: anything else; a column of such a name can be renamed in ``sql=``.
    """
    if not isinstance(name, str) or len(name) > _MAX_LENGTH or not _WORD.match(name):
        raise ConfigurationError(
            f"{what}: {name!r} is not the name of a column (one word of letters, digits, _ and $). "
            'For a column of another name use sql="SELECT … AS plain_name".'
        )
    return name


def table_parts(table: str | Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a table name: ``"schema.table"``, or the parts themselves, which may hold any printable
    character because the dialect quotes them.

    :raises ConfigurationError: empty, not a name, or more than three parts.
    """
    if isinstance(table, str):
        parts = tuple(table.split("."))
        good = all(_WORD.match(part) for part in parts)
    else:
        parts = tuple(table)
        good = all(_printable(part) for part in parts)
    if not good or not 1 <= len(parts) <= _MAX_PARTS or max(map(len, parts)) > _MAX_LENGTH:
        raise ConfigurationError(
            f'table={table!r} is not the name of a table. Use "table" or "schema.table"; names with other characters '
            'as parts: ["schema", "table"]; a query as sql=.'
        )
    return parts


def _printable(part: Any) -> bool:
    return (
        isinstance(part, str)
        and bool(part.strip())
        and not any(unicodedata.category(each) in ("Cc", "Cf", "Cs") for each in part)
    )
