"""What the demo shows while it works: one line per step, with what happens in it below."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

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
        self._console.print(f"  [dim]·[/dim] {text}", highlight=False)


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
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=31),
            TextColumn("{task.completed:.0f} of {task.total:.0f}"),
            TimeElapsedColumn(),
        )
        shown = columns if self.console.is_terminal else ()
        bar = Progress(*shown, console=self.console, transient=True, disable=not self.console.is_terminal)
        if not self.console.is_terminal:
            self.console.print(f"  {title} …", highlight=False)
        try:
            with bar:
                yield Step(self.console, bar, bar.add_task(title, total=None))
        except BaseException:
            self.console.print(f"[red]✗[/red] {title}", highlight=False)
            raise
        took = time.monotonic() - began
        self.console.print(f"[green]✓[/green] {title} [dim]({took:.0f} s)[/dim]", highlight=False)
