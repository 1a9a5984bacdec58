"""The figures of a business date and of a task, each defined once: for pages, commands, logs, exports and the watch.

``listed`` counts documents, each once, however often they were asked for:

    listed = done + rejected + waived + dropped + failed + in doubt + in progress + not begun

``asks`` counts how often a try asked for one and got an answer:

    asks = executed + replayed + blocked

A document belongs to the date on which it was first listed, also with ``once_per="document"``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from airflow_guard.core.decisions import Situation, situation_of
from airflow_guard.core.states import Phase, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_guard.core.guard import LedgerRow


WAIVED = "waived"
"""Completed without an effect of ours, since a person has said that it is settled another way."""

FIGURE_OF: Mapping[str, str] = {
    Situation.DONE: "done",
    Situation.FOLLOW_UP_OPEN: "done",
    Situation.FOLLOW_UP_RUNNING: "done",
    WAIVED: "waived",
    Situation.REJECTED: "rejected",
    Situation.DROPPED: "dropped",
    Situation.FAILED: "failed",
    Situation.ABANDONED: "failed",
    Situation.IN_DOUBT: "in_doubt",
    Situation.RUNNING: "in_progress",
}
"""Which figure a key belongs to, by where it stands. Adopted history is done."""


def figure_of(row: LedgerRow) -> str:
    """Return which figure a key belongs to."""
    waived = row.state is State.COMPLETED and row.phase is Phase.NONE and row.task_run_id is not None
    return FIGURE_OF[WAIVED if waived else situation_of(row)]


@dataclass(frozen=True, slots=True)
class Figures:
    """Where the documents of a date stand.

    :param done: the effect has happened, also where what follows it has not.
    :param failed: the effect has certainly not happened; the next try executes it.
    :param not_begun: listed, and nobody has claimed it: given back, held back, or its try ended before.
    """

    done: int = 0
    rejected: int = 0
    waived: int = 0
    dropped: int = 0
    failed: int = 0
    in_doubt: int = 0
    in_progress: int = 0
    not_begun: int = 0

    @property
    def listed(self) -> int:
        """All of them."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Return each of them by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def describe(self) -> str:
        """Return them as one phrase.

        >>> Figures(done=3, in_doubt=1).describe(), Figures().describe()
        ('4 listed = 3 done + 1 in doubt', '0 listed')
        """
        return _sum_in_words(f"{self.listed:,} listed", self.parts())

    @staticmethod
    def of(keys: Mapping[str, int], not_begun: int = 0) -> Figures:
        """Return the figures of keys that are counted by where they stand."""
        counts: dict[str, int] = {"not_begun": not_begun}
        for situation, count in keys.items():
            name = FIGURE_OF[situation]
            counts[name] = counts.get(name, 0) + count
        return Figures(**counts)

    @staticmethod
    def total(several: Iterable[Figures]) -> Figures:
        """Return several figures added up."""
        found = list(several)
        return Figures(
            **{each.name: sum(getattr(one, each.name) for one in found) for each in fields(Figures)}
        )


@dataclass(frozen=True, slots=True)
class Asks:
    """How often tries asked for documents, and what they got.

    :param executed: the effect was executed.
    :param own_replays: done before by an earlier try of the same task and run: a retry that goes on.
    :param duplicates: done before by somebody else, who need not be asked again.
    :param blocked: held back.
    """

    executed: int = 0
    own_replays: int = 0
    duplicates: int = 0
    blocked: int = 0

    @property
    def replayed(self) -> int:
        """What was done before, by whomever."""
        return self.own_replays + self.duplicates

    @property
    def asks(self) -> int:
        """All of them."""
        return self.executed + self.replayed + self.blocked

    def parts(self) -> dict[str, int]:
        """Return each of them by name, with the two that ``replayed`` consists of."""
        own = {"own_replays": self.own_replays, "duplicates": self.duplicates}
        return {"executed": self.executed, "replayed": self.replayed, **own, "blocked": self.blocked}

    def describe(self) -> str:
        """Return them as one phrase.

        >>> Asks(executed=2, own_replays=3, duplicates=1).describe()
        '6 asks = 2 executed + 4 replayed (3 by an earlier try of this task)'
        """
        own = f" ({self.own_replays:,} by an earlier try of this task)" if self.own_replays else ""
        counts = {"executed": self.executed, "replayed": self.replayed, "blocked": self.blocked}
        said = _sum_in_words(f"{self.asks:,} ask{'' if self.asks == 1 else 's'}", counts)
        return said.replace(" replayed", f" replayed{own}")

    @property
    def held_off(self) -> int:
        """Duplicates that did no harm: others asked for what was done, or were kept from it."""
        return self.duplicates + self.blocked

    @staticmethod
    def of(executed: int, replayed: int, own_replays: int, blocked: int) -> Asks:
        """Return the asks of counts as tries have them."""
        return Asks(executed, own_replays, replayed - own_replays, blocked)


def _sum_in_words(total: str, parts: Mapping[str, int]) -> str:
    said = " + ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in parts.items() if count)
    return f"{total} = {said}" if said else total
