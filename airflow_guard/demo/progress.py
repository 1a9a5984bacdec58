"""What the demo shows while it works: one headline per step, with what happens in it below."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

__all__ = ["Screen", "Step"]


class Step:
    """One step of the demo while it is under way."""

    def __init__(self, console: Console, bar: Progress, line: TaskID) -> None:
        self._console = console
        self._bar = bar
        self._line = line

    def count(self, done: int, total: int) -> None:
        """Show how far the step is."""
        self._bar.update(self._line, completed=done, total=total)

    def note(self, text: str) -> None:
        """Tell something that stays on the screen."""
        _indented(self._console, "·", text)


class Screen:
    """The terminal, or whatever standard output is.

    :param console: where to write.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show that a step is under way, and afterwards that it is done and how long it took."""
        began = time.monotonic()
        self.console.print(f"[bold]{title}[/bold]", highlight=False)
        columns = (SpinnerColumn(), BarColumn(bar_width=31), MofNCompleteColumn(), TimeElapsedColumn())
        live = self.console.is_terminal
        bar = Progress(*columns, console=self.console, transient=True, disable=not live)
        try:
            with bar:
                yield Step(self.console, bar, bar.add_task(title, total=None))
        except BaseException:
            _indented(self.console, "[red]✗[/red]", "[red]stopped here[/red]")
            raise
        _indented(self.console, "[green]✓[/green]", f"[dim]{time.monotonic() - began:.0f} s[/dim]")


def _indented(console: Console, mark: str, text: str) -> None:
    if not console.is_terminal:
        console.print(f"  {mark} {text}", highlight=False, soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1))
    grid.add_row(" ", mark, text)
    console.print(grid)
