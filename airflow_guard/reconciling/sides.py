"""A side of a reconciliation as the author of a DAG writes it; its names are checked before a statement is built."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_guard.core.errors import ConfigurationError

# -- Names of tables and columns: checked before a statement is built, quoted by the dialect later -----------

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


# -- A side of a reconciliation, as the author of a DAG writes it --------------------------------------------


@dataclass(frozen=True)
class Side:
    """One of the two sets of rows that are compared: the *source*, or the *target* (the result table).

    Names may be Airflow templates; they are checked at once where they are none, and all of them again after
    rendering (:meth:`rendered`), before anything is sent to a database::

        Side(conn_id="core_banking", table="gl.postings", amount="amount", key="document_no",
             where="business_date = :business_date")

    :param conn_id: Airflow connection. The engine itself gets SQLAlchemy engines and only shows this name.
    :param table: ``"table"``, ``"schema.table"``, or its parts as a sequence (for names with other characters).
    :param sql: a SELECT instead of ``table``; it needs a column for each name used below. Its parameters are written
        ``:name`` and bound, never pasted.
    :param amount: the amount column, or several. Exact types: decimal, integer, or text holding a plain decimal
        number. A float column is refused unless a tolerance above zero is set. ``None``: there is no amount, only
        records.
    :param key: the column, or columns, that identify a document. Without it only totals are compared.
    :param where: a condition on ``table``, with ``:name`` parameters.
    :param parameters: values for ``:name`` in ``where`` and ``sql``. ``business_date`` is supplied by the sensor.
    :param columns: what this side calls a column: ``{"amount": "amt"}``. Applies to ``amount``, ``key``, ``currency``
        and to the ``group_by`` and ``compare`` of the rules.
    :param currency: the currency column. Several currencies that are not in ``group_by`` are refused, because they
        cannot be added up. The default counts only where there is such a column; ``None`` switches the check off.
    :raises ConfigurationError: something above cannot work.
    """

    conn_id: str
    table: str | Sequence[str] | None = None
    sql: str | None = None
    amount: str | Sequence[str] | None = "amount"
    key: str | Sequence[str] | None = None
    where: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    currency: str | None = "currency"

    def __post_init__(self) -> None:
        conn_id: Any = self.conn_id
        if not isinstance(conn_id, str) or not conn_id.strip():
            raise ConfigurationError(f"Side(conn_id={self.conn_id!r}): name an Airflow connection.")
        if (self.table is None) == (self.sql is None):
            raise ConfigurationError(
                f"Side(conn_id={self.conn_id!r}): give either table= or sql=, not both and not neither."
            )
        if self.sql is not None and not self.sql.strip(" \t\r\n;"):
            raise ConfigurationError(f"Side(conn_id={self.conn_id!r}): sql= is empty.")
        if self.sql is not None and self.where is not None:
            raise ConfigurationError(
                f"Side(conn_id={self.conn_id!r}): where= belongs to table=; put the condition into sql=."
            )
        if self.key is not None and not self.keys:
            raise ConfigurationError(f"Side(conn_id={self.conn_id!r}): key= names no column.")
        self._check_mappings()
        self._check_names(rendered=False)

    @property
    def amounts(self) -> tuple[str, ...]:
        """The amount columns as the author names them."""
        return () if self.amount is None else _several(self.amount)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns as the author names them; empty without a key."""
        return () if self.key is None else _several(self.key)

    def column(self, name: str) -> str:
        """Return what this side calls a column."""
        return self.columns.get(name, name)

    def table_parts(self) -> tuple[str, ...]:
        """Return the checked parts of ``table``.

        :raises ConfigurationError: not the name of a table.
        """
        if self.table is None:
            raise ConfigurationError(f"Side(conn_id={self.conn_id!r}) has sql= and no table.")
        return table_parts(self.table)

    def rendered(self, render: Callable[[Any], Any]) -> Side:
        """Return this side with every text rendered, and checked again.

        :param render: gets a string, list or dictionary and returns it rendered (an operator's ``render_template``).
        :raises ConfigurationError: a rendered name is not a name; nothing was sent.
        """
        names = ("table", "sql", "amount", "key", "where", "currency")
        changed = {name: _rendered(getattr(self, name), render) for name in names}
        for name in ("parameters", "columns"):
            changed[name] = {key: _rendered(value, render) for key, value in getattr(self, name).items()}
        side = replace(self, **changed)
        side.check()
        return side

    def check(self) -> None:
        """Check every name as it is now; a template that is left is refused too.

        :raises ConfigurationError: a name is not a name.
        """
        self._check_names(rendered=True)

    def describe(self) -> str:
        """Return how messages call this side."""
        what = ".".join(self.table_parts()) if self.table is not None else "sql"
        return f"{self.conn_id}: {what}"

    def _check_mappings(self) -> None:
        for name in ("parameters", "columns"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigurationError(f"Side({name}={getattr(self, name)!r}) must be a dictionary.")
            object.__setattr__(self, name, dict(getattr(self, name)))

    def _check_names(self, *, rendered: bool) -> None:
        def pending(*texts: object) -> bool:
            return not rendered and any(isinstance(text, str) and is_template(text) for text in texts)

        if self.table is not None and not pending(
            *((self.table,) if isinstance(self.table, str) else self.table)
        ):
            table_parts(self.table)
        given = [("amount", name) for name in self.amounts] + [("key", name) for name in self.keys]
        given += [("columns", name) for name in self.columns.values()]
        if self.currency is not None:
            given.append(("currency", self.currency))
        for what, name in given:
            if not pending(name):
                column_name(name, f"Side({what}=…)")
        for what in ("amounts", "keys"):
            names = getattr(self, what)
            if len({self.column(name) for name in names}) < len(names):
                raise ConfigurationError(f"Side({what[:-1]}=…) names a column twice: {list(names)}.")


def _several(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _rendered(value: Any, render: Callable[[Any], Any]) -> Any:
    if isinstance(value, str):
        return render(value)
    if isinstance(value, (list, tuple)):
        return tuple(render(each) if isinstance(each, str) else each for each in value)
    return value
