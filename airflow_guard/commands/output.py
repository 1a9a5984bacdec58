"""What commands print: tables as Airflow's own commands have, and the same as JSON, YAML or plain text."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.box import ASCII_DOUBLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_guard.acts.arguments import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import OverflowMethod

Record = dict[str, Any]
"""One row: column name to JSON value."""

_PIPED_WIDTH = 200
# Between two columns: a space, a bar and a space.
_SEPARATOR = 3
# A column that would be cut to less is left out.
_NARROWEST = 10
# The labels of a block stand in a column of this width.
_LABEL = 18


def console(*, errors: bool = False) -> Console:
    """Return where to print: as wide as the terminal, or wide enough for a pipe."""
    out = Console(stderr=errors, highlight=False, markup=False, soft_wrap=False)
    if not out.is_terminal:
        out.width = _PIPED_WIDTH
    return out


def say(text: str = "", style: str | None = None) -> None:
    """Print a line for people; it wraps at words, and goes beside the data where that goes to a program."""
    console().print(Text(printable(text), style=style or ""), soft_wrap=not sys.stdout.isatty())


def note(text: str) -> None:
    """Print a line for people that must not get into the data."""
    console(errors=True).print(Text(printable(text)), soft_wrap=not sys.stderr.isatty())


def records(rows: Sequence[Record], output: str, *, styles: Mapping[Any, str] | None = None) -> None:
    """Print rows in the form that ``--output`` asks for.

    :param rows: all with the same columns. Tables and plain text show empty cells for ``None``.
    :param styles: by the value of the first column, for tables on a terminal.
    """
    if output == "json":
        print(json.dumps(list(rows), ensure_ascii=False, indent=2))
    elif output == "yaml":
        print(_yaml(list(rows)), end="")
    elif not rows:
        say("No data found")
    elif output == "plain":
        _plain(rows)
    else:
        out = console()
        out.print(_table(rows, styles or {}, out.width if out.is_terminal else None))


def record(one: Record, output: str) -> None:
    """Print one row: an object in JSON and YAML, otherwise a table of one row."""
    if output == "json":
        print(json.dumps(one, ensure_ascii=False, indent=2))
    elif output == "yaml":
        print(_yaml(one), end="")
    else:
        records([one], output)


def block(facts: Iterable[tuple[str, str | None]]) -> None:
    """Print labelled facts, a line each, long ones wrapped under themselves; ``None`` is left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=_LABEL, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in facts:
        if value is not None:
            grid.add_row(label, Text(printable(value)))
    console().print(grid)


def command_lines(commands: Mapping[str, str]) -> None:
    """Print commands to copy: each on a line of its own, never wrapped."""
    for label, line in commands.items():
        print(f"  {label}:\n    {line}")


def printable(text: str) -> str:
    """Return text with control characters spelt out: stored text must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return printable(str(value)).replace("\n", " ")


def _table(rows: Sequence[Record], styles: Mapping[Any, str], width: int | None) -> Table:
    """Return a table. On a terminal (``width``) a row is one line: the last columns are cut, or left out."""
    names = list(rows[0])
    cells = [[_cell(value) for value in row.values()] for row in rows]
    widths: Sequence[int | None] = [None] * len(names) if width is None else _fitted(names, cells, width)
    table = Table(box=ASCII_DOUBLE_HEAD, show_edge=False, pad_edge=False)
    overflow: OverflowMethod = "fold" if width is None else "ellipsis"
    for name, fitted in zip(names, widths, strict=False):
        table.add_column(name, overflow=overflow, no_wrap=width is not None, width=fitted)
    for line in cells:
        first, *others = line[: len(widths)]
        table.add_row(Text(first, style=styles.get(first, "")), *map(Text, others))
    return table


def _fitted(names: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of as many columns as fit; the last one that does is cut to what is left."""
    fitted: list[int] = []
    left = width
    for column, name in enumerate(names):
        wanted = max(cell_len(text) for text in (name, *(row[column] for row in cells)))
        if fitted and left < min(wanted, _NARROWEST):
            break
        fitted.append(min(wanted, left))
        left -= fitted[-1] + _SEPARATOR
    return fitted


def _plain(rows: Sequence[Record]) -> None:
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _yaml(value: Any) -> str:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError("--output yaml needs PyYAML, which is not installed; use json") from None
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
