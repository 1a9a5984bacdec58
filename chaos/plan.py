"""What is to be done: which operations, for which dates, over which documents. The rig writes it, the DAGs read it.

The referee expects exactly this. It holds no word of the package's.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAN_FILE = "CHAOS_PLAN"
MAPPED = 3
"""Documents of a mapped task: each is a process of its own."""
TASKS_PER_FAULT = 4
"""Tasks that there are for each fault, about: what is to be done is divided by them."""

Effect = Literal["posting", "mailer", "bank", "filer", "printer"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One guarded task of the DAGs.

    :param effect: where it has its effect: the business table ``posting``, or a receiver.
    """

    dag_id: str
    name: str
    effect: Effect
    hourly: bool = False
    mapped: bool = False
    batch: bool = False
    once_per_document: bool = False


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("books", "post", "posting"),
        Operation("books", "notify", "mailer"),
        Operation("payments", "book", "posting", hourly=True),
        Operation("payments", "pay", "bank", hourly=True),
        Operation("files", "post_batch", "posting", batch=True),
        Operation("files", "send_file", "filer", batch=True),
        Operation("letters", "print", "printer", mapped=True),
        Operation("standing", "standing", "posting", once_per_document=True),
    )
}


@dataclass(frozen=True, slots=True)
class Expected:
    """One effect that must be there once in the end. A document's number is unique in all of the work."""

    operation: Operation
    business_date: date
    cycle: str
    document: str

    @property
    def amount(self) -> Decimal:
        """What is to be posted."""
        return amount_of(self.document)


@dataclass(frozen=True, slots=True)
class Plan:
    """How far the work reaches.

    :param start: the first business date, ISO.
    :param days: business dates of the daily DAGs.
    :param hours: runs of the hourly DAG.
    :param documents: of each task that is not mapped.
    :param pause_s: seconds that each document takes at least, so that there is something to disturb.
    :param watch_from: when the watch begins, ISO.
    """

    start: str
    days: int
    hours: int
    documents: int
    pause_s: float
    watch_from_at: str

    @classmethod
    def read(cls, path: Path | None = None) -> Plan:
        """Read the plan from its file, by default the one that the environment names."""
        return cls(**json.loads((path or Path(os.environ[PLAN_FILE])).read_text()))

    def write(self, path: Path) -> None:
        """Write the plan, in one step: somebody may be reading it."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)

    @property
    def start_at(self) -> datetime:
        """The beginning of the first business date."""
        return datetime.fromisoformat(self.start).replace(tzinfo=UTC)

    @property
    def last_day(self) -> datetime:
        """The beginning of the last business date."""
        return self.start_at + timedelta(days=self.days - 1)

    @property
    def last_hour(self) -> datetime:
        """The beginning of the last hour."""
        return self.start_at + timedelta(hours=self.hours - 1)

    @property
    def watch_from(self) -> datetime:
        """When the watch begins to look."""
        return datetime.fromisoformat(self.watch_from_at)

    def occasions(self, operation: Operation) -> Iterator[tuple[date, str]]:
        """Yield business date and cycle of each run."""
        if operation.hourly:
            for hour in range(self.hours):
                at = self.start_at + timedelta(hours=hour)
                yield at.date(), at.strftime("%H")
        else:
            for day in range(self.days):
                yield (self.start_at + timedelta(days=day)).date(), ""

    def payloads(self, operation: str, business_date: date, cycle: str) -> list[dict[str, Any]]:
        """Return the documents that a run lists. What stands is listed again the next day."""
        known = OPERATIONS[operation]
        dates = [business_date]
        if known.once_per_document and business_date > self.start_at.date():
            dates.insert(0, business_date - timedelta(days=1))
        number = MAPPED if known.mapped else self.documents
        names = [_document(known, day, cycle, each) for day in dates for each in range(number)]
        return [{"operation": operation, "no": name, "amount": str(amount_of(name))} for name in names]

    def expected(self) -> Iterator[Expected]:
        """Yield every effect that must be there once."""
        for operation in OPERATIONS.values():
            number = MAPPED if operation.mapped else self.documents
            for day, cycle in self.occasions(operation):
                for each in range(number):
                    yield Expected(operation, day, cycle, _document(operation, day, cycle, each))

    @property
    def size(self) -> int:
        """How many effects are expected."""
        return sum(1 for _ in self.expected())


def _document(operation: Operation, day: date, cycle: str, number: int) -> str:
    return f"{operation.name}:{day}{f'T{cycle}' if cycle else ''}:{number:04d}"


def start_of(day: date, cycle: str) -> datetime:
    """Return the beginning of a business date, or of its cycle."""
    return datetime(day.year, day.month, day.day, int(cycle or 0), tzinfo=UTC)


def amount_of(document: str) -> Decimal:
    """Return the amount of a document, which its number decides."""
    return Decimal(int(hashlib.sha256(document.encode()).hexdigest()[:6], 16)) / 100
