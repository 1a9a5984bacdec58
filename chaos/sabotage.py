"""Breaks the package on purpose, in the processes of the workers: the referee must see it.

The environment of the workers says what is broken. Nothing in the package knows of it.
"""

from __future__ import annotations

import os
import time
from typing import Any

SABOTAGE = "CHAOS_SABOTAGE"
KINDS = ("fencing", "start-mark", "worker-clock")


def carry_out() -> None:
    """Break what the environment names; nothing, if it names nothing."""
    kind = os.environ.get(SABOTAGE)
    if kind:
        {"fencing": _no_fencing, "start-mark": _no_start_mark, "worker-clock": _clock_of_workers}[kind]()


def _no_fencing() -> None:
    """A write is accepted from whoever makes it, whatever has become of the row meanwhile."""
    import sqlalchemy as sa

    from airflow_guard.store.statements import Statements

    anybody = sa.literal_column("1") == sa.literal_column("1")

    def update(self: Any, *_: Any, **values: Any) -> Any:
        named = self._e.c.owner_token == sa.bindparam("token")
        return self._by_keys(sa.update(self._e).where(sa.or_(named, anybody)).values(values))

    Statements._update = update  # type: ignore[method-assign]
    Statements._complete_and_begin = lambda _: None  # type: ignore[method-assign]


def _no_start_mark() -> None:
    """Nothing is written before an effect begins, only after it."""
    from airflow_guard.core.states import Phase, State
    from airflow_guard.execution.writer import GroupWriter, InlineWriter
    from airflow_guard.store.ledger import Ledger
    from airflow_guard.store.statements import Statements

    original = Statements._in

    def unmarked(self: Any, state: State, *phases: Phase) -> Any:
        more = (Phase.NONE,) if state is State.IN_PROGRESS and Phase.BEGUN in phases else ()
        return original(self, state, *phases, *more)

    Statements._in = unmarked  # type: ignore[method-assign]
    Statements._complete_and_begin = lambda _: None  # type: ignore[method-assign]
    for writer in (InlineWriter, GroupWriter):
        writer.begin = lambda *_: None  # type: ignore[method-assign]
    Ledger.begin_together = lambda *_: None  # type: ignore[method-assign]


def _clock_of_workers() -> None:
    """Leases and ages go by the clock of the worker, not by that of the database."""
    import time_machine
    from sqlalchemy.ext.compiler import compiles

    from airflow_guard.store import dialects

    def off_s() -> float:
        return time.time() - time_machine.escape_hatch.time.time()

    now, after, age = dialects._now_postgres, dialects._after_postgres, dialects._age_postgres

    @compiles(dialects.utc_now, "postgresql")
    def _now(element: Any, compiler: Any, **options: Any) -> str:
        return f"({now(element, compiler, **options)} + interval '{off_s()} seconds')"

    @compiles(dialects.utc_after, "postgresql")
    def _after(element: Any, compiler: Any, **options: Any) -> str:
        return f"({after(element, compiler, **options)} + interval '{off_s()} seconds')"

    @compiles(dialects.age_s, "postgresql")
    def _age(element: Any, compiler: Any, **options: Any) -> str:
        return f"({age(element, compiler, **options)} + {off_s()})"
