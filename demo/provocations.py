"""What is done to the month of statements to make it run twice, or get lost.

Each provocation holds the process at the worst moment before it disturbs it. Nothing here waits for luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from sqlalchemy import func, select

from airflow_guard.store.tables import Tables
from demo.airflow_client import ENDED
from demo.books import statement_posting
from demo.held_posting import HeldPosting
from demo.scene import DAG, LETTERS_DAG, MONTH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Engine

    from demo.progress import Step
    from demo.scene import Scene

__all__ = ["Provocation", "post_january", "provoke", "run_again", "tries_of"]

_ZONE = ZoneInfo("Europe/Berlin")
_KILLED_POSTING, _TWO_AT_ONCE, _KILLED_NOTIFYING = date(2026, 1, 9), date(2026, 1, 15), date(2026, 1, 20)
_CLEARED, _BY_HAND, _LETTERS = date(2026, 1, 5), date(2026, 1, 12), date(2026, 1, 31)
_AT_ONCE = 8

_task_run, _event = Tables().task_run, Tables().event


@dataclass(frozen=True, kw_only=True)
class Provocation:
    """One thing that was done, and the task tries in which its consequences are found.

    :param title: what was done.
    :param remark: what came of it, in words.
    :param tries: ids in ``guard_task_run``.
    :param replayed: how many documents must have been found done, ``None`` if that depends on the moment.
    :param blocked: how many must have been held back, at least: otherwise the provocation did not hit.
    :param executed: how many must have been done by these tries.
    :param in_doubt: how many must be left in doubt.
    """

    title: str
    remark: str
    tries: tuple[int, ...]
    replayed: int | None = None
    blocked: int = 0
    executed: int = 0
    in_doubt: int = 0


class _Month:
    """The runs of the backfill, and how many have ended."""

    def __init__(self, scene: Scene, step: Step) -> None:
        self._scene = scene
        self._step = step
        self.run_ids: dict[date, str] = {}
        self._count = 0

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
        self.find()

    def find(self) -> None:
        """Note the runs that there are."""
        for run in self._scene.airflow.client.runs(DAG):
            if run.run_type == "backfill" and run.interval_start:
                day = datetime.fromisoformat(run.interval_start).astimezone(_ZONE).date()
                self.run_ids[day] = run.run_id

    def ended(self) -> bool:
        """Whether all runs of the month have ended."""
        count = self._scene.airflow.client.count_runs(DAG, states=ENDED, run_type="backfill")
        self._count = count
        self._step.count(count, len(MONTH))
        return count == len(MONTH)

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait, and show meanwhile how far the month is."""

        def counted() -> bool:
            self.ended()
            return done()

        self._scene.airflow.client.wait(counted, what, signs=lambda: self._count, every_s=1)


# ---------------------------------------------------------------------------------------- the first time


def post_january(scene: Scene) -> list[Provocation]:
    """Post the month by a backfill; kill two processes meanwhile, and start one day a second time."""
    title = "January is posted and the customers are notified: a backfill of 31 days"
    with (
        scene.screen.step(title) as step,
        _held(scene, _KILLED_POSTING) as killed,
        _held(scene, _TWO_AT_ONCE) as shared,
    ):
        month = _Month(scene, step)
        arrived, lost = (scene.statements[_KILLED_NOTIFYING][position]["statement_no"] for position in (2, 4))
        scene.mailer.hold(arrived, "after")
        scene.mailer.hold(lost, "before")
        month.backfill()
        _kill_posting(scene, month, step, killed)
        by_hand = _start_twice(scene, month, step, shared)
        _kill_notifying(scene, month, step, lost)
        month.wait(month.ended, "the backfill to end")
        scene.airflow.client.wait_for_run(DAG, by_hand)
    return [
        Provocation(
            title="Process killed (kill -9) while posting",
            remark="the statement in hand was rolled back; the retry posted it",
            tries=tries_of(scene.bank, [month.run_ids[_KILLED_POSTING]], task_id="post", first_try=2),
            replayed=2,
            executed=5,
        ),
        Provocation(
            title="Process killed (kill -9) while notifying",
            remark="the receiver was asked about two: one had arrived; one had not, and was sent",
            tries=tries_of(scene.bank, [month.run_ids[_KILLED_NOTIFYING]], task_id="notify", first_try=2),
            replayed=6,
            executed=1,
        ),
        Provocation(
            title="Two processes at one day at the same moment",
            remark="the second waited for the first, and took over its results",
            tries=tries_of(scene.bank, [by_hand], task_id="post"),
            blocked=1,
        ),
    ]


def _held(scene: Scene, day: date) -> HeldPosting:
    # The third statement of its day: two are done then, and four not begun.
    return HeldPosting(scene.bank, scene.statements[day][2]["account"], day)


def _kill_posting(scene: Scene, month: _Month, step: Step, held: HeldPosting) -> None:
    day = _KILLED_POSTING
    month.wait(held.reached, f"the posting of {day} to be in the middle of a statement")
    pid = scene.airflow.kill_task(DAG, month.run_ids[day], "post")
    held.release()
    statement = scene.statements[day][2]
    step.note(
        f"{day:%-d %B}: process {pid} killed (kill -9) while it posted; {len(statement['lines'])} lines of "
        f"{statement['statement_no']} were written, its balance not"
    )
    written = select(func.count()).where(statement_posting.c.statement_no == statement["statement_no"])
    with scene.bank.connect() as connection:
        left = connection.execute(written).scalar_one()
    step.note(f"{day:%-d %B}: {left} of these lines are in the books; the retry posts them")


def _start_twice(scene: Scene, month: _Month, step: Step, held: HeldPosting) -> str:
    day, client = _TWO_AT_ONCE, scene.airflow.client
    month.wait(held.reached, f"the posting of {day} to be in the middle of a statement")
    run_id = client.trigger(DAG, conf={"business_date": day.isoformat()})
    step.note(f"{day:%-d %B}: while it is being posted, a colleague starts the same day by hand")
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
    step.note(f"{day:%-d %B}: the second process sees that the first is at work, and waits")
    return run_id


def _kill_notifying(scene: Scene, month: _Month, step: Step, lost: str) -> None:
    day = _KILLED_NOTIFYING
    numbers = {statement["statement_no"] for statement in scene.statements[day]}

    def under_way() -> bool:
        return lost in scene.mailer.held() and numbers - {lost} <= set(scene.mailer.calls().by_statement)

    month.wait(under_way, f"the notifications of {day} to be on their way")
    pid = scene.airflow.kill_task(DAG, month.run_ids[day], "notify")
    scene.mailer.release(deliver=False)
    step.note(
        f"{day:%-d %B}: process {pid} killed (kill -9) while it notified; one notification had arrived "
        "unconfirmed, another was lost on its way"
    )


# ---------------------------------------------------------------------------------------- afterwards


def provoke(scene: Scene) -> list[Provocation]:
    """Clear a run, start a done day by hand, and kill a process whose receiver cannot be asked."""
    client, bank = scene.airflow.client, scene.bank
    with scene.screen.step(
        "A run is cleared, a done day is started by hand, a third process is killed"
    ) as step:
        after = _last_try(bank)
        month = _Month(scene, step)
        month.find()
        cleared = month.run_ids[_CLEARED]
        client.clear_run(DAG, cleared)
        step.note(f"{_CLEARED:%-d %B}: the run is cleared; both of its tasks run again")
        by_hand = client.trigger(DAG, conf={"business_date": _BY_HAND.isoformat()})
        step.note(f"{_BY_HAND:%-d %B}: started by hand although it is done")
        letters = _kill_printing(scene, step)
        for dag_id, run_id in ((DAG, cleared), (DAG, by_hand), (LETTERS_DAG, letters)):
            client.wait_for_run(dag_id, run_id)
    return [
        Provocation(
            title="A run cleared",
            remark="all of it was done",
            tries=tries_of(bank, [cleared], after),
            replayed=14,
        ),
        Provocation(
            title="A done day started by hand",
            remark="all of it was done",
            tries=tries_of(bank, [by_hand], after),
            replayed=14,
        ),
        Provocation(
            title="Process killed (kill -9) while printing letters; the print shop cannot be asked",
            remark="one letter may be printed or not: not repeated, a person finds out",
            tries=tries_of(bank, [letters], after, first_try=2),
            blocked=1,
            executed=3,
            in_doubt=1,
        ),
    ]


def _kill_printing(scene: Scene, step: Step) -> str:
    client, letter = scene.airflow.client, scene.statements[_LETTERS][3]["statement_no"]
    scene.print_shop.hold(letter, "after")
    run_id = client.trigger(LETTERS_DAG, conf={"business_date": _LETTERS.isoformat()})
    client.wait(lambda: letter in scene.print_shop.held(), "a letter to be on its way")
    pid = scene.airflow.kill_task(LETTERS_DAG, run_id, "print_letter")
    scene.print_shop.release(deliver=False)
    step.note(
        f"{_LETTERS:%-d %B}: process {pid} killed (kill -9) while it handed a letter to the print shop, "
        "which cannot be asked afterwards"
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

        client.wait(free, "Airflow to mark the first backfill as completed")
        month = _Month(scene, step)
        month.backfill(again=True)
        month.wait(month.ended, "the second backfill to end")
    return [
        Provocation(
            title="The whole backfill again: 31 days, both tasks",
            remark="all of it was done",
            tries=tries_of(scene.bank, month.run_ids.values(), after),
            replayed=2 * scene.month.statements,
        )
    ]


# ---------------------------------------------------------------------------------------- where to look


def _last_try(bank: Engine) -> int:
    with bank.connect() as connection:
        return int(connection.execute(select(func.max(_task_run.c.id))).scalar_one() or 0)


def tries_of(
    bank: Engine, run_ids: Collection[str], after: int = 0, *, task_id: str | None = None, first_try: int = 1
) -> tuple[int, ...]:
    """Return the ids of the tries of some runs in ``guard_task_run``.

    :param after: only later ones.
    """
    found = select(_task_run.c.id).where(
        _task_run.c.run_id.in_(run_ids), _task_run.c.id > after, _task_run.c.try_number >= first_try
    )
    if task_id is not None:
        found = found.where(_task_run.c.task_id == task_id)
    with bank.connect() as connection:
        return tuple(connection.execute(found).scalars())
