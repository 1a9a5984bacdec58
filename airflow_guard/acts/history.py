"""Where history to be adopted comes from: a CSV file or a query."""

from __future__ import annotations

import codecs
import csv
import io
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from airflow_guard.acts.adoption import COLUMNS, HistoryRow
from airflow_guard.core.documents import BYTE_ORDER_MARK, BYTE_ORDER_MARKS
from airflow_guard.core.errors import ResolutionError
from airflow_guard.core.texts import cell_meant
from airflow_guard.store.database import _READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import sqlalchemy as sa

_FETCHED = 500
_ROUNDED = re.compile(r"\d(?:[.,]\d+)?E\+\d+")
_READ_ONLY_ON = {
    "postgresql": "SET TRANSACTION READ ONLY",
    # Of the session: DDL would end a transaction that is read only, and then run.
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = ON",
}
_READ_ONLY_OFF = {
    "mysql": "SET SESSION TRANSACTION READ WRITE",
    "mariadb": "SET SESSION TRANSACTION READ WRITE",
    "sqlite": "PRAGMA query_only = OFF",
}


def csv_rows(lines: Iterable[str], delimiter: str = ",") -> Iterator[HistoryRow]:
    """Yield the rows of a CSV text with a header: ``business_date[,document][,cycle][,result]``.

    :param lines: an open text file. Lines are counted from 1, the header included.
    :param delimiter: one character.
    :raises ResolutionError: the header is not what it must be, or the file is not text.
    """
    reader = csv.reader(_without_mark(lines), delimiter=delimiter, strict=True)
    try:
        header = next((cells for cells in reader if cells), None)
        if header is None:
            raise ResolutionError("The CSV file is empty; it needs a header: business_date,document")
        names = _columns([name.strip() for name in header], "The CSV header")
        for cells in reader:
            place = f"line {reader.line_num}"
            if not cells:
                continue  # an empty line
            if len(cells) != len(names):
                problem = f"has {len(cells)} cells, the header has {len(names)}"
                yield HistoryRow(place, {}, problem)
            else:
                values = {name: cell_meant(cell) for name, cell in zip(names, cells, strict=True)}
                yield HistoryRow(place, values, _spoilt(values))
    except csv.Error as error:
        raise ResolutionError(f"The CSV file cannot be read at line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise ResolutionError(
            f"The CSV file is not {error.encoding} text (after line {reader.line_num}): {error.reason}. "
            "Convert it to UTF-8."
        ) from error


def _spoilt(values: Mapping[str, str]) -> str | None:
    """Return what is wrong with an id that a spreadsheet took for a number: tasks would not find it, and do it again."""
    document = values.get("document", "")
    if not _ROUNDED.fullmatch(document):
        return None
    return (
        f"document is {document!r}, as a spreadsheet writes a long number: its digits are lost. Let the ids be text there, "
        "and save the file again"
    )


def uploaded_rows(data: bytes, delimiter: str = ",") -> Iterator[HistoryRow]:
    """Yield the rows of a CSV file that was handed over as a whole; see :func:`csv_rows`.

    :raises ResolutionError: it is not UTF-8 text, or see :func:`csv_rows`.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        which = "UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "not UTF-8"
        raise ResolutionError(
            f"The CSV file is {which} text (at byte {error.start}). Convert it to UTF-8."
        ) from error
    return csv_rows(io.StringIO(text, newline=""), delimiter)


def _without_mark(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without the byte order mark that spreadsheets put before the first one."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix(BYTE_ORDER_MARK)


@contextmanager
def sql_rows(engine: sa.Engine, sql: str) -> Iterator[Iterator[HistoryRow]]:
    """Run a query in a read-only transaction of its own and give its rows as they come.

    :param engine: of the database that knows the history; its connection is rolled back at the end.
    :param sql: selects ``business_date`` and, as far as there are, ``document``, ``cycle`` and ``result``.
    :raises ResolutionError: the query fails, or has other columns.
    """
    with _explained():
        # On the ledger's own SQLite file: a reader beside the writer.
        connection = engine.connect().execution_options(**{_READ_ONLY: True})
    try:
        yield _fetched(connection, sql)
    finally:
        _give_back(connection)


def _fetched(connection: sa.Connection, sql: str) -> Iterator[HistoryRow]:
    with _explained():
        if connection.dialect.name in _READ_ONLY_ON:
            connection.exec_driver_sql(_READ_ONLY_ON[connection.dialect.name])
        # No parameters at all, so that a percent sign or a colon in the query is just that.
        options = {"stream_results": True, "yield_per": _FETCHED, "no_parameters": True}
        result = connection.exec_driver_sql(sql, execution_options=options)
        if not result.returns_rows:
            raise ResolutionError("--sql must be a query that returns rows. Nothing was written.")
        names = [str(name).removeprefix(BYTE_ORDER_MARK).lower() for name in result.keys()]  # noqa: SIM118
        names = _columns(names, "The query")
        for number, row in enumerate(result, start=1):
            yield HistoryRow(f"row {number}", dict(zip(names, row, strict=True)))


def _give_back(connection: sa.Connection) -> None:
    try:
        connection.rollback()
        if connection.dialect.name in _READ_ONLY_OFF:
            connection.exec_driver_sql(_READ_ONLY_OFF[connection.dialect.name])
            connection.rollback()
    except DBAPIError:
        connection.invalidate()
    finally:
        connection.close()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise ResolutionError(
            f"The query for the history failed: {error.orig}. Nothing was written."
        ) from error


def _columns(names: Sequence[str], what: str) -> list[str]:
    """Refuse what is not known: a misspelt ``document`` would adopt runs as a whole."""
    known = ", ".join(COLUMNS)
    unknown: list[Any] = sorted(set(names) - set(COLUMNS))
    marked = [name for name in names if name.startswith(BYTE_ORDER_MARKS)]
    if marked:
        raise ResolutionError(
            f"{what} has a byte order mark before {marked[0]!r}, of another encoding. Save it as UTF-8."
        )
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise ResolutionError(f"{what} is {names[0]!r}: is its delimiter another one? (--delimiter)")
    if unknown:
        raise ResolutionError(f"{what} has unknown columns: {', '.join(unknown)}. There may be: {known}.")
    if len(set(names)) != len(names):
        raise ResolutionError(f"{what} has a column twice: {', '.join(names)}.")
    if "business_date" not in names:
        raise ResolutionError(f"{what} has no column business_date, only {', '.join(names)}.")
    return list(names)
