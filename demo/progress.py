"""What the demo shows while it works: one headline per step, with what happens in it below."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

__all__ = ["Screen", "Step"]

_LINE_EVERY_S = 15.0


class Step:
    """One step of the demo while it is under way."""

    def __init__(self, console: Console, bar: Progress, line: TaskID) -> None:
        self._console = console
        self._bar = bar
        self._line = line
        self._began = self._said = time.monotonic()
        self._done = ""

    def count(self, done: int, total: int) -> None:
        """Show how far the step is."""
        self._done = f", {done} of {total}"
        self._bar.update(self._line, completed=done, total=total)

    def waiting(self, what: str) -> None:
        """Show what is waited for: beside the bar, or as a line now and then where there is none."""
        self._bar.update(self._line, description=f"waits for {what}")
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said >= _LINE_EVERY_S:
            self.note(f"{now - self._began:.0f} s, waits for {what}{self._done}")

    def note(self, text: str) -> None:
        """Tell something that stays on the screen."""
        self._said = time.monotonic()
        _indented(self._console, "·", text)


class Screen:
    """The terminal, or whatever standard output is.

    :param console: where to write.
    :param steps: how many there will be.
    """

    def __init__(self, console: Console, steps: int) -> None:
        self.console = console
        self._steps = steps
        self._begun = 0
        self._now: Step | None = None

    def waiting(self, what: str) -> None:
        """Show in the step that is under way what is waited for."""
        if self._now is not None:
            self._now.waiting(what)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show that a step is under way, and afterwards that it is done and how long it took."""
        began = time.monotonic()
        self._begun += 1
        self.console.print(f"[bold]{self._begun}/{self._steps} {title}[/bold]", highlight=False)
        columns = (
            SpinnerColumn(),
            BarColumn(bar_width=31),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.description}[/dim]"),
        )
        live = self.console.is_terminal
        bar = Progress(*columns, console=self.console, transient=True, disable=not live)
        try:
            with bar:
                self._now = Step(self.console, bar, bar.add_task("", total=None))
                yield self._now
        except BaseException:
            _indented(self.console, "[red]✗[/red]", "[red]stopped here[/red]")
            raise
        finally:
            self._now = None
        _indented(self.console, "[green]✓[/green]", f"[dim]{time.monotonic() - began:.0f} s[/dim]")


def _indented(console: Console, mark: str, text: str) -> None:
    if not console.is_terminal:
        console.print(f"  {mark} {text}", highlight=False, soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1))
    grid.add_row(" ", mark, text)
    console.print(grid)
