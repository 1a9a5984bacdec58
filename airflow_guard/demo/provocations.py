"""What is done to the month of statements to make it run twice, or get lost.

Each provocation holds the process at the worst moment before it disturbs it. Nothing here waits for luck.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Self
from zoneinfo import ZoneInfo

from sqlalchemy import func, insert, select, text

from airflow_guard.demo.books import balance, statement_posting
from airflow_guard.demo.scene import DAG, LETTERS_DAG, MONTH
from airflow_guard.store.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Connection, Engine

    from airflow_guard.demo.progress import Step
    from airflow_guard.demo.scene import Scene

__all__ = ["HeldPosting", "Provocation", "post_january", "provoke", "run_again"]

_ZONE = ZoneInfo("Europe/Berlin")
_KILLED_POSTING, _TWO_AT_ONCE, _KILLED_NOTIFYING = date(2026, 1, 10), date(2026, 1, 15), date(2026, 1, 20)
_CLEARED, _BY_HAND, _LETTERS = date(2026, 1, 5), date(2026, 1, 12), date(2026, 1, 31)
_PATIENCE_S = 240
_AT_ONCE = 8

_task_run, _event = Tables().task_run, Tables().event


@dataclass(frozen=True)
class Provocation:
    """One thing that was done, and the task tries in which its consequences are found.

    :param title: what was done.
    :param tries: ids in ``guard_task_run``.
    :param replayed: how many documents must have been found done, ``None`` if that depends on the moment.
    :param blocked: how many must have been held back, at least: otherwise the provocation did not hit.
    :param executed: how many must have been done by these tries, ``None`` if that depends on the moment.
    :param in_doubt: how many must be left in doubt.
    :param remark: what the numbers mean.
    """

    title: str
    tries: tuple[int, ...]
    remark: str
    replayed: int | None = None
    blocked: int = 0
    executed: int | None = None
    in_doubt: int = 0


class HeldPosting:
    """Lets the posting of one statement stand still between its lines and its balance.

    The row of the balance is inserted in a transaction that is not committed. The posting then waits for that
    row, all of its lines being written and none committed.

    :param bank: the business database.
    :param account: of the statement.
    :param business_date: of the statement.
    """

    def __init__(self, bank: Engine, account: str, business_date: date) -> None:
        self._bank = bank
        self._row = {
            "account": account,
            "business_date": business_date,
            "currency": "",
            "closing": Decimal(0),
            "transactions": 0,
        }
        self._holder: Connection
        self._backend: int

    def __enter__(self) -> Self:
        self._holder = self._bank.connect()
        self._holder.execute(insert(balance), self._row)
        self._backend = self._holder.execute(text("SELECT pg_backend_pid()")).scalar_one()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._holder.close()

    def reached(self) -> bool:
        """Whether the posting stands there now."""
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE :holder = ANY(pg_blocking_pids(pid))")
        with self._bank.connect() as connection:
            return bool(connection.execute(waiting, {"holder": self._backend}).scalar_one())

    def release(self) -> None:
        """Take the row back; the posting goes on."""
        self._holder.rollback()


class _Month:
    """The runs of the backfill, and how many have ended."""

    def __init__(self, scene: Scene, step: Step) -> None:
        self._scene = scene
        self._step = step
        self.run_ids = dict.fromkeys(MONTH, "")

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait, and show meanwhile how far the month is."""

        def counted() -> bool:
            self.ended()
            return done()

        self._scene.airflow.client.wait(counted, what, timeout_s=_PATIENCE_S)

    def ended(self) -> bool:
        """Whether all runs of the month have ended."""
        runs = [run for run in self._scene.airflow.client.runs(DAG) if run.run_type == "backfill"]
        for run in runs:
            if run.interval_start:
                self.run_ids[datetime.fromisoformat(run.interval_start).astimezone(_ZONE).date()] = run.run_id
        count = sum(run.state in ("success", "failed") for run in runs)
        self._step.count(count, len(MONTH))
        return count == len(MONTH)

    def backfill(self, *, again: bool = False) -> None:
        """Create the backfill of the month."""
        start, end = (datetime(day.year, day.month, day.day, tzinfo=_ZONE) for day in (MONTH[0], MONTH[-1]))
        self._scene.airflow.client.backfill(
            DAG,
            start,
            end + timedelta(hours=23),
            reprocess="completed" if again else "none",
            max_active_runs=_AT_ONCE,
        )
        self.ended()


def post_january(scene: Scene) -> list[Provocation]:
    """Post the month by a backfill; kill two processes meanwhile, and start one day a second time."""
    title = "January is posted and the customers are notified: a backfill of 31 days"
    with scene.screen.step(title) as step, ExitStack() as held:
        month = _Month(scene, step)
        killed, shared = (
            held.enter_context(HeldPosting(scene.bank, scene.statements[day][3]["account"], day))
            for day in (_KILLED_POSTING, _TWO_AT_ONCE)
        )
        arrived, lost = scene.statement_no(_KILLED_NOTIFYING, 2), scene.statement_no(_KILLED_NOTIFYING, 4)
        scene.mailer.hold(arrived, "after")
        scene.mailer.hold(lost, "before")
        month.backfill()
        _kill_posting(scene, month, step, killed)
        by_hand = _start_twice(scene, month, step, shared)
        _kill_notifying(scene, month, step, {arrived, lost})
        month.wait(month.ended, "the backfill to end")
        scene.airflow.client.wait_for_run(DAG, by_hand)
    posting = _tries(scene.bank, [month.run_ids[_KILLED_POSTING]], task_id="post", first_try=2)
    sending = _tries(scene.bank, [month.run_ids[_KILLED_NOTIFYING]], task_id="notify", first_try=2)
    second = _tries(scene.bank, [by_hand], task_id="post")
    return [
        Provocation(
            "kill -9 in the middle of posting", posting, "rolled back, then posted by the retry", 3, 4, 4
        ),
        Provocation(
            "kill -9 in the middle of notifying",
            sending,
            "the receiver was asked: one had arrived, one had not and was sent by the retry",
            replayed=6,
            blocked=2,
            executed=1,
        ),
        Provocation(
            "Two processes at the same day",
            second,
            "the second waited for the first, then took over its results",
            replayed=7,
            blocked=4,
            executed=0,
        ),
    ]


def _kill_posting(scene: Scene, month: _Month, step: Step, held: HeldPosting) -> None:
    day = _KILLED_POSTING
    month.wait(held.reached, f"the posting of {day} to be in the middle of a statement")
    pid = scene.airflow.kill_task(DAG, month.run_ids[day], "post")
    held.release()
    statement = scene.statements[day][3]
    step.note(
        f"{day}: process {pid} killed (kill -9) in the middle of posting, {len(statement['lines'])} lines of "
        f"{statement['statement_no']} written and its balance not"
    )
    written = select(func.count()).where(statement_posting.c.statement_no == statement["statement_no"])
    with scene.bank.connect() as connection:
        left = connection.execute(written).scalar_one()
    step.note(
        f"{day}: {left} of these lines are in the books now; the retry waits for the dead one's lease to end"
    )


def _start_twice(scene: Scene, month: _Month, step: Step, held: HeldPosting) -> str:
    day, client = _TWO_AT_ONCE, scene.airflow.client
    month.wait(held.reached, f"the posting of {day} to be in the middle of a statement")
    run_id = client.trigger(DAG, conf={"business_date": day.isoformat()})
    step.note(f"{day}: while it is being posted, a colleague starts the same day by hand")
    noticed = (
        select(func.count())
        .select_from(_event.join(_task_run, _event.c.task_run_id == _task_run.c.id))
        .where(_event.c.kind == "blocked", _task_run.c.run_id == run_id)
    )

    def blocked() -> bool:
        with scene.bank.connect() as connection:
            return bool(connection.execute(noticed).scalar_one())

    month.wait(blocked, f"the second run of {day} to be held back")
    held.release()
    step.note(f"{day}: the second process sees the first at work, and waits")
    return run_id


def _kill_notifying(scene: Scene, month: _Month, step: Step, statements: set[str]) -> None:
    day = _KILLED_NOTIFYING
    month.wait(
        lambda: statements <= set(scene.mailer.held()), f"the notifications of {day} to be on their way"
    )
    pid = scene.airflow.kill_task(DAG, month.run_ids[day], "notify")
    scene.mailer.release(deliver=False)
    step.note(
        f"{day}: process {pid} killed (kill -9) in the middle of notifying: one notification had arrived "
        "unconfirmed, another was lost on its way"
    )


def provoke(scene: Scene) -> list[Provocation]:
    """Clear a run, start a done day by hand, and kill a process whose receiver cannot be asked."""
    client, bank = scene.airflow.client, scene.bank
    with scene.screen.step(
        "A run is cleared, a done day is started by hand, and a third process is killed"
    ) as step:
        after = _last_try(bank)
        cleared = next(
            run.run_id
            for run in client.runs(DAG)
            if run.run_type == "backfill" and (run.interval_start or "").startswith(_CLEARED.isoformat())
        )
        client.clear_run(DAG, cleared)
        step.note(f"{_CLEARED}: the run is cleared, both of its tasks run again")
        by_hand = client.trigger(DAG, conf={"business_date": _BY_HAND.isoformat()})
        step.note(f"{_BY_HAND}: started by hand, a month after it was done")
        letters = _kill_printing(scene, step)
        for dag_id, run_id in ((DAG, cleared), (DAG, by_hand), (LETTERS_DAG, letters)):
            client.wait_for_run(dag_id, run_id, timeout_s=_PATIENCE_S)
    return [
        Provocation("A run cleared", _tries(bank, [cleared], after), "found done", 14, executed=0),
        Provocation(
            "A done day started by hand", _tries(bank, [by_hand], after), "found done", 14, executed=0
        ),
        Provocation(
            "kill -9 where nobody can be asked",
            _tries(bank, [letters], after, first_try=2),
            "printed or not? Not repeated, a person decides",
            replayed=3,
            blocked=4,
            executed=3,
            in_doubt=1,
        ),
    ]


def _kill_printing(scene: Scene, step: Step) -> str:
    client, letter = scene.airflow.client, scene.statement_no(_LETTERS, 3)
    scene.print_shop.hold(letter, "after")
    run_id = client.trigger(LETTERS_DAG, conf={"business_date": _LETTERS.isoformat()})
    client.wait(lambda: letter in scene.print_shop.held(), "a letter to be on its way", timeout_s=_PATIENCE_S)
    pid = scene.airflow.kill_task(LETTERS_DAG, run_id, "print_letter")
    scene.print_shop.release(deliver=False)
    step.note(
        f"{_LETTERS}: process {pid} killed (kill -9) while it handed a letter to a print shop, which cannot "
        "be asked afterwards"
    )
    return run_id


def run_again(scene: Scene) -> list[Provocation]:
    """Run the whole month a second time."""
    client = scene.airflow.client
    with scene.screen.step("The same backfill again, with reprocess behaviour completed: 31 days") as step:
        after = _last_try(scene.bank)
        request = {"dag_id": DAG, "limit": 1}

        def free() -> bool:
            found = client.request("GET", "/api/v2/backfills", params=request)["backfills"]
            return all(backfill["completed_at"] for backfill in found)

        client.wait(free, "Airflow to mark the first backfill as completed", timeout_s=_PATIENCE_S)
        month = _Month(scene, step)
        month.backfill(again=True)
        month.wait(month.ended, "the second backfill to end")
    tries = _tries(scene.bank, month.run_ids.values(), after)
    return [
        Provocation(
            "The same backfill again, 31 days",
            tries,
            "every run cleared and run again, found done",
            434,
            executed=0,
        )
    ]


def _last_try(bank: Engine) -> int:
    with bank.connect() as connection:
        return int(connection.execute(select(func.max(_task_run.c.id))).scalar_one() or 0)


def _tries(
    bank: Engine, run_ids: Collection[str], after: int = 0, *, task_id: str | None = None, first_try: int = 1
) -> tuple[int, ...]:
    found = select(_task_run.c.id).where(
        _task_run.c.run_id.in_(run_ids), _task_run.c.id > after, _task_run.c.try_number >= first_try
    )
    if task_id is not None:
        found = found.where(_task_run.c.task_id == task_id)
    with bank.connect() as connection:
        return tuple(connection.execute(found).scalars())
