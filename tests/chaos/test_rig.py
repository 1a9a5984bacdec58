"""The chaos rig itself: its referee sees what is wrong, and nothing of it is left when it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pendulum
import psutil
import pytest
from airflow.timetables.base import TimeRestriction

from chaos import faults, hosts
from chaos.duty import left_out
from chaos.faults import celery, databases, machines, people, processes
from chaos.faults.drawing import FAULTS, drawn
from chaos.plan import OPERATIONS, PLAN_FILE, Plan
from chaos.referee import judge
from chaos.rig import RECEIVERS, Rig
from chaos.timetable import DAILY, HOURLY, AsPlanned
from demo.offspring import Offspring, marked
from demo.waiting import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.plan import Expected

PLAN = Plan("2025-03-01", 2, 2, 3, 0.1, "2025-03-01T00:00:00+00:00")
ROOT = Path(__file__).parents[2]


class World:
    """A business database, journals and alerts as a good run leaves them, to be spoilt."""

    def __init__(self, folder: Path) -> None:
        self.rig = Rig(folder, PLAN)
        self.rig.with_small_disk = False
        folder.chmod(0o755)
        self.rig._plan.write(self.rig.plan_file)
        self.rig._start_databases()
        self.reset()

    def close(self) -> None:
        self.rig._cleanup.close()

    def sql(self, statement: str, **values: Any) -> None:
        with self.rig.connect() as connection:
            connection.execute(statement, values)

    def reset(self) -> None:
        self.sql("TRUNCATE posting, guard_execution, guard_task_run")
        self.sql("ALTER TABLE guard_event DISABLE TRIGGER USER")
        self.sql("DELETE FROM guard_event")
        self.rig.alerts_file.write_text("")
        self.rig.taken.clear()
        for name in RECEIVERS:
            self.rig.journal(name).write_text("")
        for number, each in enumerate(PLAN.expected()):
            self.act(each)
            self.sql(
                "INSERT INTO guard_execution (key_date, key_hash, normaliser, key_namespace, operation, business_date, "
                "cycle, document, deployment, state, phase, follow_up, attempt, generation, owner_token, "
                "idempotency_key, claimed_at, finished_at) VALUES (%(day)s, %(hash)s, 1, %(dag)s, %(op)s, %(day)s, "
                "%(cycle)s, %(no)s, 'default', 'completed', 'done', 'none', 1, 1, 't', %(hash)s, now(), now())",
                day=each.business_date, hash=f"{number:032}", dag=each.operation.dag_id, op=each.operation.name,
                cycle=each.cycle, no=each.document,
            )  # fmt: skip

    def act(self, each: Expected) -> None:
        if each.operation.effect == "posting":
            self.sql(
                "INSERT INTO posting (operation, business_date, document, amount, edition) "
                "VALUES (%(op)s, %(day)s, %(no)s, %(amount)s, 1)",
                op=each.operation.name, day=each.business_date, no=each.document, amount=each.amount,
            )  # fmt: skip
        else:
            with self.rig.journal(each.operation.effect).open("a") as journal:
                journal.write(json.dumps({"key": "k", "statement_no": each.document}) + "\n")

    def doubt(self, document: str, age: timedelta = timedelta(minutes=10)) -> None:
        self.sql(
            "INSERT INTO guard_event (at, kind, key_hash, key_text, actor, reason) SELECT %(at)s, 'doubt', key_hash, "
            "document, 'x', 'x' FROM guard_execution WHERE document = %(no)s",
            at=datetime.now(UTC) - age, no=document,
        )  # fmt: skip

    def try_of_post(self, outcome: str) -> None:
        self.sql(
            "INSERT INTO guard_task_run (dag_id, task_id, run_id, map_index, try_number, run_type, deployment, "
            "key_namespace, operation, business_date, date_source, date_detail, cycle, key_shape, mode, host, pid, "
            "started_at, ended_at, outcome) VALUES ('books', 'post', 'r', -1, 1, 'manual', 'default', 'books', 'post', "
            "'2025-03-01', 'x', 'x', '', 'x', 'enforce', 'h', 1, now(), now(), %(outcome)s)",
            outcome=outcome,
        )

    def tell(self, text: str, run_id: str = "") -> None:
        with self.rig.alerts_file.open("a") as alerts:
            alert = {"at": datetime.now(UTC).isoformat(), "subject": text, "text": text, "run_id": run_id}
            alerts.write(json.dumps(alert) + "\n")

    def found(self) -> dict[str, int]:
        verdict = judge(self.rig)
        names = ("duplicates", "lost", "unflagged", "stuck", "wrong")
        found = {name: len(getattr(verdict, name)) for name in names if getattr(verdict, name)}
        assert verdict.good is not bool(found)
        return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that another user may enter: root's PostgreSQL runs as one."""
    made = Path(tempfile.mkdtemp(prefix="guard-rig-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def made(folder: Path) -> Iterator[World]:
    (folder / "referee").mkdir()
    world = World(folder / "referee")
    yield world
    world.close()


@pytest.fixture
def world(made: World) -> World:
    made.reset()
    return made


POSTED, NOTIFIED, PRINTED = "post:2025-03-01:0000", "notify:2025-03-01:0000", "print:2025-03-01:0000"


def expected(document: str) -> Expected:
    return next(each for each in PLAN.expected() if each.document == document)


def test_a_good_run_is_good(world: World) -> None:
    assert world.found() == {}
    line = judge(world.rig).closing(7)
    assert line == f"documents={PLAN.size} faults=7 duplicates=0 lost=0 unflagged=0 stuck=0"


def test_a_second_effect_is_a_duplicate(world: World) -> None:
    world.act(expected(NOTIFIED))
    assert world.found() == {"duplicates": 1}
    world.act(expected(POSTED))
    assert world.found() == {"duplicates": 2, "wrong": 1}, "the sum of the day is wrong as well"


def test_what_is_completed_without_an_effect_is_lost(world: World) -> None:
    world.sql("DELETE FROM posting WHERE document = %(no)s", no=POSTED)
    assert world.found() == {"lost": 1, "wrong": 1}


def test_what_the_ledger_does_not_know_is_lost(world: World) -> None:
    world.sql("DELETE FROM guard_execution WHERE document = %(no)s", no=NOTIFIED)
    assert world.found() == {"lost": 1}


def test_what_is_not_begun_in_the_end_is_stuck_and_lost_if_its_task_has_succeeded(world: World) -> None:
    world.sql("DELETE FROM guard_execution WHERE document = %(no)s", no=POSTED)
    world.sql("DELETE FROM posting WHERE document = %(no)s", no=POSTED)
    assert world.found() == {"stuck": 1}
    world.try_of_post("success")
    assert world.found() == {"lost": 1}


def test_what_is_not_done_in_the_end_is_stuck(world: World) -> None:
    world.sql(
        "UPDATE guard_execution SET state = 'failed', phase = 'none' WHERE document = %(no)s", no=NOTIFIED
    )
    assert world.found() == {"stuck": 1}


def test_a_wrong_amount_is_wrong(world: World) -> None:
    world.sql("UPDATE posting SET amount = amount + 1 WHERE document = %(no)s", no=POSTED)
    assert world.found() == {"wrong": 1}


def test_an_effect_that_nobody_expected_is_wrong(world: World) -> None:
    world.act(replace(expected(NOTIFIED), document="notify:2031-01-01:0000"))
    assert world.found() == {"wrong": 1}


def test_a_doubt_that_nobody_settled_is_unflagged(world: World) -> None:
    world.doubt(NOTIFIED)
    world.tell("notify 2025-03-01")
    assert world.found() == {"unflagged": 1}


def test_a_doubt_of_which_nobody_was_told_is_unflagged(world: World) -> None:
    world.doubt(PRINTED)
    world.sql(
        "UPDATE guard_execution SET state = 'in_doubt', phase = 'begun', finished_at = NULL WHERE document = %(no)s",
        no=PRINTED,
    )
    assert world.found() == {"stuck": 1, "unflagged": 1}
    world.tell("print 2025-03-01")
    assert world.found() == {"stuck": 1}


def test_a_lost_answer_that_made_no_doubt_is_unflagged(world: World) -> None:
    size = RECEIVERS["printer"].loses_answers
    journal = world.rig.journal("printer")
    line = json.dumps({"key": "k", "statement_no": ""})
    calls = journal.read_text().splitlines()
    journal.write_text("".join(f"{each}\n" for each in [*[line] * (size - 1), *calls]))
    assert world.found() == {"unflagged": 1}


def test_a_failure_of_which_nobody_was_told_is_unflagged(world: World) -> None:
    world.try_of_post("failed")
    assert world.found() == {"unflagged": 1}
    world.tell("will retry (1/5): books / post, business date 2025-03-01", run_id="r")
    assert world.found() == {}


def test_a_failure_is_excused_only_if_a_person_took_the_task_away_meanwhile(world: World) -> None:
    world.try_of_post("failed")
    with world.rig.taking("books", "r"):
        pass
    assert world.found() == {"unflagged": 1}, "it had ended before"
    world.rig.taken.clear()
    with world.rig.taking("books", "another"):
        world.sql("UPDATE guard_task_run SET ended_at = clock_timestamp()")
    assert world.found() == {"unflagged": 1}, "it was another run"
    with world.rig.taking("books", "r"):
        world.sql("UPDATE guard_task_run SET ended_at = clock_timestamp()")
    assert world.found() == {}


# -- the faults -----------------------------------------------------------------------------------------


def test_a_seed_repeats_the_faults() -> None:
    assert all((faults, hosts, celery, databases, machines, people, processes))
    every = list(FAULTS.values())

    def first(seed: int) -> list[tuple[str, float, float]]:
        order = drawn(seed, every)
        return [(each.name, pause, draw.random()) for each, pause, draw in (next(order) for _ in range(100))]

    assert first(5) == first(5)
    assert first(5) != first(6)
    assert {name for name, *_ in first(5)} == set(FAULTS), "each kind comes"


def test_each_kind_comes_before_any_comes_again() -> None:
    order = drawn(5, list(FAULTS.values()))
    assert {each.name for each, *_ in (next(order) for _ in range(len(FAULTS)))} == set(FAULTS)


def test_each_operation_expects_what_its_runs_list() -> None:
    for operation in OPERATIONS.values():
        listed = {
            payload["no"]
            for day, cycle in PLAN.occasions(operation)
            for payload in PLAN.payloads(operation.name, day, cycle)
        }
        assert listed == {each.document for each in PLAN.expected() if each.operation is operation}


# -- the work -------------------------------------------------------------------------------------------


def test_the_schedule_reaches_as_far_as_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAN_FILE, str(tmp_path / "plan.json"))

    def runs_of(schedule: str, plan: Plan) -> list[datetime]:
        plan.write(tmp_path / "plan.json")
        timetable = AsPlanned.deserialize(AsPlanned(schedule, timezone="UTC").serialize())
        whole = TimeRestriction(pendulum.instance(plan.start_at), None, catchup=True)
        found: list[datetime] = []
        last = None
        while (
            run := timetable.next_dagrun_info(last_automated_data_interval=last, restriction=whole)
        ) is not None:
            last = run.data_interval
            found.append(run.logical_date)
        return found

    further = replace(PLAN, days=5, hours=30)
    assert runs_of(DAILY, PLAN) == [PLAN.start_at, PLAN.start_at + timedelta(days=1)]
    assert runs_of(DAILY, further) == [PLAN.start_at + timedelta(days=day) for day in range(5)]
    assert runs_of(HOURLY, further) == [PLAN.start_at + timedelta(hours=hour) for hour in range(30)]


def test_dates_that_airflow_left_out_are_seen() -> None:
    plan = replace(PLAN, days=6)

    def begun(day: int, *, automatic: bool, dag_id: str = "books") -> dict[str, Any]:
        return {"dag_id": dag_id, "business_date": date(2025, 3, day), "cycle": "", "automatic": automatic}

    of_books = [begun(1, automatic=True), begun(2, automatic=False), begun(5, automatic=True)]
    # Nobody has to come to a date that is still ahead of the schedule, even if a person has come to a later one.
    ahead = [begun(1, automatic=True, dag_id="files"), begun(4, automatic=False, dag_id="files")]
    assert left_out(plan, of_books + ahead) == {
        "books": [datetime(2025, 3, 3, tzinfo=UTC), datetime(2025, 3, 4, tzinfo=UTC)],
        "files": [],
    }


def test_what_a_killed_scheduler_leaves_idle_is_ended_and_its_tasks_go_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, PLAN)
    offspring = Offspring(str(tmp_path))
    code = "import setproctitle, sys, time; setproctitle.setproctitle(sys.argv[1]); time.sleep(100)"
    titles = ("airflow worker -- LocalExecutor: <idle>", "airflow worker -- LocalExecutor: 01a22a46")
    try:
        idle, busy = (
            offspring.start([sys.executable, "-c", code, title], log=tmp_path / "log") for title in titles
        )
        for process, title in zip((idle, busy), titles, strict=True):
            wait(lambda pid=process.pid, title=title: psutil.Process(pid).cmdline()[0] == title, "the title")
        rig.airflow = SimpleNamespace(
            home=tmp_path, components={"scheduler-1": SimpleNamespace(pid=os.getpid())}
        )
        rig._end_idle_orphans()
        assert (idle.poll(), busy.poll()) == (None, None), "their scheduler lives"
        rig.airflow.components.clear()
        rig._end_idle_orphans()
        assert idle.wait(10) == -signal.SIGKILL
        assert busy.poll() is None
    finally:
        offspring.end()


# -- the end --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_nothing_of_it_is_left(number: signal.Signals, folder: Path) -> None:
    folder = folder / number.name
    command = [sys.executable, "-m", "chaos", "--faults", "1", "--folder", str(folder)]
    rig = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True,
        # A shell that started the tests in the background has them ignore it, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread runs here
    )  # fmt: skip
    mark = str((folder / "airflow").resolve())
    try:
        wait(lambda: len(marked(mark)) > 5, "the components", lambda: len(marked(mark)))
        servers = [server_of(folder / name) for name in ("metadata", "business")]
        rig.send_signal(number)
        code = rig.wait(60)
        wait(
            lambda: not marked(mark) and not any(map(lives, servers)), "all to end", lambda: len(marked(mark))
        )
    finally:
        if rig.poll() is None:
            rig.kill()
    assert code == (128 + signal.SIGINT if number is signal.SIGINT else -signal.SIGKILL)


def server_of(folder: Path) -> int:
    return int((folder / "postmaster.pid").read_text().split()[0])


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
