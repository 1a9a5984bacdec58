"""What came of a reconciliation: for the task, for XCom, for listeners, for asset events, and for people."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.box import ASCII_DOUBLE_HEAD
from rich.console import Console
from rich.table import Table

from airflow_guard.airflow_compat import sql_check_result
from airflow_guard.core.checks import BreakState, CheckOutcome, printable
from airflow_guard.core.commands import breaks_command
from airflow_guard.core.errors import BothEmpty, BreaksFound, GuardError, NeverCompared
from airflow_guard.reconciling.check_report import group_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_guard.store.break_rows import StoredBreak
    from airflow_guard.store.reconciliations import EndedCheck

SAMPLE = 20
"""Groups and documents that are named; the rest is counted. XCom and logs are read by people."""
_FIRST = 5
_WIDTH = 160


@dataclass(frozen=True)
class DateReport:
    """What came of one date.

    :param check: how it ended.
    :param breaks: those that it found, and those that it closed.
    """

    check: EndedCheck
    breaks: tuple[StoredBreak, ...] = ()

    @property
    def found(self) -> list[StoredBreak]:
        """The breaks that are there."""
        return [each for each in self.breaks if each.closed_by_id != self.check.id]

    @property
    def open(self) -> list[StoredBreak]:
        """Those of them that nobody has explained."""
        return [each for each in self.found if each.state is BreakState.OPEN]

    @property
    def closed(self) -> list[StoredBreak]:
        """The breaks that this check no longer found."""
        return [each for each in self.breaks if each.closed_by_id == self.check.id]

    @property
    def capped(self) -> bool:
        """Whether there are more breaks than are named."""
        return bool(self.check.figures and self.check.figures.capped)

    @property
    def accepted(self) -> bool:
        """Whether the sides agree, or a person has explained each of their differences."""
        if self.check.outcome is CheckOutcome.PASSED:
            return True
        compared = self.check.outcome in (CheckOutcome.BROKEN, CheckOutcome.EMPTY)
        return compared and bool(self.found) and not self.open and not self.capped

    def new_in(self, run_id: str) -> list[StoredBreak]:
        """Return the open breaks that this run has opened."""
        return [each for each in self.open if each.opened_in == run_id]


@dataclass(frozen=True)
class TryReport:
    """What came of a try: of its own date, and of earlier dates that it looked at again.

    :param what: operation and date, to begin messages with.
    :param names: ``key_namespace`` and ``operation``.
    :param run_id: the run: breaks of earlier dates fail the run that finds them, and no later one.
    """

    what: str
    run_id: str
    own: DateReport
    earlier: tuple[DateReport, ...] = ()
    ledger: str | None = None
    names: tuple[str, str] = ("", "")

    @property
    def command(self) -> str:
        """The command line that lists the breaks."""
        namespace, operation = self.names
        day = self.own.check.business_date.isoformat()
        return breaks_command(namespace, day, operation=operation, ledger=self.ledger)

    @property
    def dates(self) -> tuple[DateReport, ...]:
        """All dates, the own one first."""
        return (self.own, *self.earlier)

    @property
    def time_over(self) -> bool:
        """Whether the timeout ended it: the difference still changed, or a side could not be read."""
        return any(not each.check.settled and not each.accepted for each in self.dates)

    @property
    def broken(self) -> list[DateReport]:
        """The dates whose breaks fail the task, the own one first."""
        broken = [] if self.own.accepted else [self.own]
        return broken + [each for each in self.earlier if not each.accepted and self._is_news(each)]

    def failure(self) -> GuardError | None:
        """Return the error that ends the task, ``None`` if it succeeds."""
        never = [each for each in self.dates if each.check.outcome is CheckOutcome.FAILED]
        if never:
            return NeverCompared("\n".join([f"{self.what}: not compared.", *map(_never, never)]))
        broken = self.broken
        if not broken:
            return None
        empty = all(each.check.outcome is CheckOutcome.EMPTY for each in broken)
        lines = [f"{self.what}: {'nothing on either side' if empty else 'breaks'}."]
        lines += [line for each in broken for line in self._broken(each)]
        lines.append(
            "Correct the side that is wrong and clear the task: what is gone is closed. All breaks, and how to accept one "
            f"that is right as it is (--explain): {self.command}"
        )
        return (BothEmpty if empty else BreaksFound)("\n".join(lines))

    def _is_news(self, date: DateReport) -> bool:
        return bool(date.new_in(self.run_id))

    def _broken(self, date: DateReport) -> Iterator[str]:
        earlier = "" if date is self.own else " (an earlier date, looked at again)"
        yield f"{date.check.business_date}{earlier}: {date.check.reason}"
        # The reason names the first documents. Those of whole groups, and ages, only the ledger has.
        known = [each for each in date.open if each.opened_in != self.run_id]
        if known:
            yield f"{len(known):,} of these are open since {_oldest(known)}."

    def warnings(self) -> Iterator[str]:
        """Yield what a person should know although it fails nothing."""
        for each in self.dates:
            day = each.check.business_date
            explained = [one for one in each.found if one.state is BreakState.EXPLAINED]
            if explained:
                yield f"{day}: {len(explained):,} breaks are explained ({explained[0].actor}: {explained[0].reason})."
            if each.closed:
                yield f"{day}: {len(each.closed):,} breaks are gone and closed: {_names(each.closed)}."
            if each is not self.own and each.open and not self._is_news(each):
                yield f"{day}: {len(each.open):,} breaks are still open, since {_oldest(each.open)}: {_names(each.open)}."
            if each is not self.own and "Changed since it passed" in each.check.reason and each.accepted:
                yield f"{day}: {each.check.reason.splitlines()[0]}"

    def summary(self) -> dict[str, Any]:
        """Return the small JSON value for XCom."""
        own, figures = self.own, self.own.check.figures
        return {
            "business_date": own.check.business_date.isoformat(),
            "outcome": own.check.outcome.value,
            "accepted": own.accepted,
            "with_keys": figures.with_keys if figures else None,
            "source_count": figures.source_count if figures else None,
            "target_count": figures.target_count if figures else None,
            "totals": list(figures.totals[:SAMPLE]) if figures else [],
            "groups": len(figures.totals) if figures else 0,
            "breaks": len(own.found),
            "open": len(own.open),
            "closed": len(own.closed),
            "capped": own.capped,
            "documents": [each.found.document for each in own.found if each.found.document][:SAMPLE],
            "pokes": own.check.progress.pokes,
            "errors": own.check.progress.errors,
            "earlier": {
                each.check.business_date.isoformat(): {
                    "outcome": each.check.outcome.value,
                    "open": len(each.open),
                    "new": len(each.new_in(self.run_id)),
                    "closed": len(each.closed),
                }
                for each in self.earlier
            },
        }

    def asset_extra(self) -> dict[str, Any]:
        """Return what the asset events of the task carry; ``from_asset_extra()`` reads the business date."""
        figures = self.own.check.figures
        return {
            "business_date": self.own.check.business_date.isoformat(),
            "reconciled": self.own.accepted,
            "breaks": len(self.own.found),
            "open": len(self.own.open),
            "source_count": figures.source_count if figures else None,
            "target_count": figures.target_count if figures else None,
        }

    def check_results(self, name: str, source: str, target: str, severity: str) -> list[Any]:
        """Return what Airflow's SQL checks leave for listeners: an entry for each group.

        :param name: the task's id.
        :param source: the source in words.
        :param target: the target in words.
        :param severity: ``error``, or ``warn`` if breaks do not fail the task.
        """
        figures = self.own.check.figures
        totals: Sequence[Mapping[str, Any]] = figures.totals if figures else ()
        shared = {"check_type": "reconciliation", "severity": severity, "table": target}
        params = {"business_date": self.own.check.business_date.isoformat(), "source": source}
        if not totals:
            return [
                sql_check_result(
                    name=name,
                    success=self.own.accepted,
                    description=self.own.check.reason,
                    params=params,
                    **shared,
                )
            ]
        return [
            sql_check_result(
                name=f"{name}: {group_text(each['group'])}",
                success=not each["reasons"],
                expected=_side_text(each["source"]),
                actual=_side_text(each["target"]),
                description=" ".join(each["reasons"]) or "The control totals of both sides agree.",
                params={**params, "group": each["group"]},
                **shared,
            )
            for each in totals
        ]

    def text(self) -> str:
        """Return tables of totals and breaks, for the log."""
        out = StringIO()
        console = Console(file=out, width=_WIDTH, highlight=False, markup=False, emoji=False)
        for each in self.dates:
            console.print(f"{each.check.business_date}: {each.check.outcome.value}")
            if each is self.own or not each.accepted:
                figures = each.check.figures
                if figures and figures.totals:
                    console.print(_totals_table(figures.totals))
                if each.found:
                    console.print(_breaks_table(each))
        return out.getvalue()


def _totals_table(totals: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=ASCII_DOUBLE_HEAD)
    table.add_column("group", overflow="fold")
    for side in ("source", "target"):
        table.add_column(f"{side} rows", justify="right")
        table.add_column(f"{side} amounts", justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for each in totals[:SAMPLE]:
        cells = [cell for side in ("source", "target") for cell in _side_cells(each[side])]
        table.add_row(group_text(each["group"]), *cells, "differs" if each["reasons"] else "agrees")
    if len(totals) > SAMPLE:
        table.add_row(f"… {len(totals) - SAMPLE:,} more groups", "", "", "", "", "")
    return table


def _breaks_table(date: DateReport) -> Table:
    table = Table(box=ASCII_DOUBLE_HEAD)
    for name in ("break", "group", "document", "field"):
        table.add_column(name, overflow="fold")
    for name in ("source", "target", "variance"):
        table.add_column(name, justify="right", overflow="fold")
    for name in ("state", "since (UTC)"):
        table.add_column(name)
    for each in date.found[:SAMPLE]:
        found = each.found
        table.add_row(
            found.break_type,
            group_text(found.group),
            printable(found.name or ""),
            found.field or "",
            _value(found.source_value, found.source_records),
            _value(found.target_value, found.target_records),
            found.variance or "",
            each.state.value,
            f"{each.first_seen_at:%Y-%m-%d %H:%M}",
        )
    left = len(date.found) - SAMPLE
    if left > 0 or date.capped:
        said = f"… {left:,} more" if left > 0 else "…"
        table.add_row(f"{said}{', and others beyond max_breaks' if date.capped else ''}", *[""] * 8)
    return table


def _value(value: str | None, records: int | None) -> str:
    several = f" in {records:,} rows" if records and records > 1 else ""
    return f"{printable(value) if value is not None else ''}{several}"


def _side_cells(side: Mapping[str, Any] | None) -> tuple[str, str]:
    if side is None:
        return "none", ""
    lines = []
    for name, amount in side["amounts"].items():
        label = f"{name} " if len(side["amounts"]) > 1 else ""
        missing = f" ({side['missing'][name]:,} without)" if side["missing"][name] else ""
        lines.append(f"{label}{'none' if amount is None else amount}{missing}")
    return f"{side['records']:,}", "\n".join(lines)


def _side_text(side: Mapping[str, Any] | None) -> str:
    rows, amounts = _side_cells(side)
    return f"{rows} rows" + (f", {amounts}".replace("\n", ", ") if amounts else "")


def _never(date: DateReport) -> str:
    progress, figures = date.check.progress, date.check.figures
    last = "They were never read."
    if figures:
        sides = [f"{count:,} rows" for count in (figures.source_count or 0, figures.target_count or 0)]
        sums = [
            f"{group_text(each['group'])}: {_side_text(each['source'])} / {_side_text(each['target'])}"
            for each in figures.totals[:_FIRST]
        ]
        last = f"Last read: source {sides[0]}, target {sides[1]} ({'; '.join(sums)})."
    return (
        f"{date.check.business_date}: {progress.errors} of {progress.pokes} looks could not read a side until the "
        f"timeout was over. {last} The last error: {progress.last_error}"
    )


def _oldest(breaks: Sequence[StoredBreak]) -> str:
    oldest = min(breaks, key=lambda each: -each.age_s)
    return f"{oldest.first_seen_at:%Y-%m-%d %H:%M} UTC"


def _names(breaks: Sequence[StoredBreak]) -> str:
    more = f", and {len(breaks) - _FIRST:,} more" if len(breaks) > _FIRST else ""
    return ", ".join(each.found.describe() for each in breaks[:_FIRST]) + more
