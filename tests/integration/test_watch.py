"""``GuardWatchOperator``: what no callback can say reaches somebody, once, and once more when it is over."""

from __future__ import annotations

import shlex
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG

from airflow_guard import (
    ConfigurationError,
    ExpectedOperation,
    GuardWatchOperator,
    IdempotentOperator,
    NotExecuted,
    ReconciliationSensor,
    Side,
    alert_on_failure,
)
from airflow_guard.acts.purging import Purge
from airflow_guard.commands.main import main
from airflow_guard.core.guard import TaskIdentity
from airflow_guard.core.keys import KeySpace
from airflow_guard.reading.watching import Watch
from airflow_guard.store.dialects import utc_after
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.task_runs import TaskTry
from tests.airflow_runs import AirflowRun, start_run
from tests.alerting import ChatNotifier, Webhook
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Business

pytestmark = databases("sqlite")
JANUARY_30 = datetime(2026, 1, 30, tzinfo=UTC)
EVERYWHERE = databases("sqlite", "postgres_embedded", "mariadb")


@pytest.fixture
def chat() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.close()


class Watching:
    """A watch that a test lets look."""

    def __init__(self, business: Business, chat: Webhook, **options: Any) -> None:
        options = {"transports": [ChatNotifier(chat.url)], "break_age": timedelta(0), **options}
        with DAG(f"watch_{business.dag_id}", schedule=None) as dag:
            GuardWatchOperator(task_id="watch", **options)
        self._dag, self._chat = dag, chat

    def look(self) -> list[str]:
        """Look once, and return what was sent."""
        before = len(self._chat.posted)
        self.run: AirflowRun = start_run(self._dag, logical_at=datetime.now(UTC)).go()
        return self._chat.posted[before:]


def in_doubt(business: Business, *documents: str) -> None:
    def pay(document: str) -> None:
        raise TimeoutError("no answer")

    with DAG(business.dag_id, schedule=None) as dag:
        IdempotentOperator(task_id="pay", python_callable=pay, documents=list(documents))
    start_run(dag, logical_at=JANUARY_30).go()


def make_older(business: Business, table: str, column: str, seconds: float) -> None:
    where = business.ledger.tables.metadata.tables[f"guard_{table}"]
    with business.ledger.engine.begin() as connection:
        connection.execute(sa.update(where).values({column: utc_after(sa.literal(-seconds))}))


def test_doubts_are_told_once_then_once_more_and_when_they_are_settled(
    business: Business, chat: Webhook
) -> None:
    in_doubt(business, "PAY-17", "PAY-18")
    watch = Watching(business, chat)

    (text,) = watch.look()
    assert text.startswith(
        f"IN DOUBT: {business.dag_id} / pay, business date 2026-01-30\n2 effects may or may not"
    )
    assert "Look at: PAY-17, PAY-18" in text
    assert "airflow-guard resolve --key" in text
    assert watch.look() == []
    make_older(business, "alert", "sent_at", 5 * 3600)
    (still,) = watch.look()
    assert still.startswith("STILL: IN DOUBT")
    assert watch.look() == []

    ledger = business.ledger.tables.execution
    with business.ledger.engine.begin() as connection:
        connection.execute(
            sa.update(ledger).values(state="completed", phase="done", finished_at=utc_after(sa.literal(0.0)))
        )
    (over,) = watch.look()
    assert over.startswith("RESOLVED (was: IN DOUBT)")
    assert watch.look() == []


def expired(business: Business) -> int:
    """Leave a try whose process was killed: its lease is over, and nobody has come after it."""
    ledger = Ledger(business.ledger)
    space = KeySpace(business.dag_id, "post", date(2026, 1, 30))
    identity = TaskIdentity(business.dag_id, "post", "run", host="batch-1", pid=4711)
    task_run = ledger.runs.open(TaskTry(identity, space, "shape"), lease_s=60)
    make_older(business, "lease", "expires_at", 120)
    return task_run


@EVERYWHERE
def test_every_statement_of_the_watch_runs_on_every_database(business: Business) -> None:
    task_run = expired(business)
    watch = Watch(Ledger(business.ledger), "default")
    (lease,) = watch.expired_leases(60)
    assert "Process 4711 on batch-1" in str(lease.happened)
    assert abs(watch.now() - datetime.now(UTC)) < timedelta(minutes=5)
    daily = ExpectedOperation(key_namespace=business.dag_id, operation="post", since="2026-01-29")
    days = (datetime.now(UTC).date() - date(2026, 1, 29)).days
    missing = list(watch.missing([daily], days))
    assert missing[0].business_date == date(2026, 1, 29)
    assert date(2026, 1, 30) in [facts.business_date for facts in missing]
    Ledger(business.ledger).runs.close(task_run, "success", {"documents": 1, "executed": 1})
    assert list(watch.expired_leases(60)) == []
    assert date(2026, 1, 30) not in [facts.business_date for facts in watch.missing([daily], days)]
    list(
        Purge(
            Ledger(business.ledger), date(2026, 1, 30), "ada", "the law", key_namespace=business.dag_id
        ).run()
    )
    assert next(watch.missing([daily], days)).business_date == date(2026, 1, 31), "purged is not never"
    assert [
        *watch.doubts(),
        *watch.aged_breaks(timedelta(0)),
        *watch.changed(JANUARY_30),
        *watch.undelivered(),
    ] == []


def test_a_killed_try_is_told_until_another_comes_after_it(business: Business, chat: Webhook) -> None:
    expired(business)
    watch = Watching(business, chat)
    (text,) = watch.look()
    assert text.startswith(f"NO SIGN OF LIFE: {business.dag_id} / post, business date 2026-01-30")
    space = KeySpace(business.dag_id, "post", date(2026, 1, 30))
    again = TaskIdentity(business.dag_id, "post", "run", try_number=2)
    Ledger(business.ledger).runs.open(TaskTry(again, space, "shape"), lease_s=60)
    assert watch.look()[0].startswith("RESOLVED (was: NO SIGN OF LIFE)")


def test_a_run_without_tasks_is_noticed_although_airflow_calls_it_a_success(
    business: Business, chat: Webhook
) -> None:
    """A manual run that is dated before the DAG's start has no task instances, and ends in success."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [(today - timedelta(days=back)).date() for back in (3, 2)]
    with DAG(business.dag_id, schedule=None, start_date=today - timedelta(days=2)) as dag:
        IdempotentOperator(task_id="post", python_callable=lambda: None)
    silent = start_run(dag, run_type="manual", logical_at=today - timedelta(days=3)).go()
    assert silent.states() == {}
    start_run(dag, run_type="manual", logical_at=today - timedelta(days=2)).go()
    daily = ExpectedOperation(key_namespace=business.dag_id, operation="post", since=days[0], due="1h")
    watch = Watching(business, chat, expected=[daily])
    watch_only = [
        facts.business_date for facts in Watch(Ledger(business.ledger), "default").missing([daily], 14)
    ]
    assert days[0] in watch_only
    assert days[1] not in watch_only
    text = "\n".join(watch.look())
    assert f"NEVER COMPLETED: {business.dag_id} / post, business date {days[0]}" in text
    assert f"business date {days[1]}" not in text


def test_only_business_days_are_expected() -> None:
    noon = datetime(2026, 1, 6, 12, tzinfo=UTC)
    german = ExpectedOperation(key_namespace="d", operation="o", since="2025-12-31", calendar="DE")
    assert [day.isoformat() for day in german.dates_due(noon, days=14)] == [
        "2025-12-31",
        "2026-01-02",
        "2026-01-05",
    ]
    month = ExpectedOperation(key_namespace="d", operation="o", since="2025-01-01", month_end=True)
    assert [day.isoformat() for day in month.dates_due(noon, days=40)] == ["2025-11-30", "2025-12-31"]


def reconciling(business: Business) -> DAG:
    sides = {
        name: Side(
            conn_id="guard_ledger", sql=f"SELECT no, amount FROM {table} WHERE day = :business_date", key="no"
        )
        for name, table in (("source", "a"), ("target", "b"))
    }
    with DAG(business.dag_id, schedule=None) as dag:
        ReconciliationSensor(task_id="reconcile", poke_interval=0.01, settle_pokes=1, recheck_days=1, **sides)
    return dag


def test_a_day_that_passed_and_then_changed_and_its_open_break_are_told_in_one_message(
    business: Business, chat: Webhook
) -> None:
    def sql(statement: str) -> None:
        with business.ledger.engine.begin() as connection:
            connection.exec_driver_sql(statement)

    for table in "ab":
        sql(f"CREATE TABLE {table} (no TEXT, amount INTEGER, day TEXT)")
        sql(f"INSERT INTO {table} VALUES ('P-29', 10, '2026-01-29'), ('P-30', 10, '2026-01-30')")
    dag, watch = reconciling(business), Watching(business, chat)
    start_run(dag, logical_at=JANUARY_30 - timedelta(days=1)).go()
    assert watch.look() == []
    sql("UPDATE a SET amount = 11 WHERE no = 'P-29'")
    start_run(dag, logical_at=JANUARY_30).go()

    (text,) = watch.look()
    assert text.startswith("2 problems: ")
    assert f"CHANGED AFTER IT PASSED: {business.dag_id} / reconcile, business date 2026-01-29" in text
    assert f"OPEN BREAKS: {business.dag_id} / reconcile, business date 2026-01-29" in text
    assert "P-29" in text


class Refusing(ChatNotifier):
    """A chat that is down."""

    def notify(self, context: Any) -> None:
        raise ConnectionError("chat is down")


def test_an_alert_that_was_not_delivered_is_found_by_the_watch(business: Business, chat: Webhook) -> None:
    with DAG(business.dag_id, schedule=None) as dag:
        IdempotentOperator(
            task_id="post", python_callable=lambda: 1 / 0, side_effect="external",
            on_failure_callback=alert_on_failure(Refusing(chat.url)),
        )  # fmt: skip
    start_run(dag, logical_at=JANUARY_30).go()
    make_older(business, "alert", "opened_at", 120)
    (text,) = Watching(business, chat).look()
    assert f"ALERT NOT DELIVERED: {business.dag_id} / post, business date 2026-01-30" in text
    assert "ConnectionError: chat is down" in text


def test_a_watch_that_can_tell_nobody_fails_and_the_next_one_tells(business: Business, chat: Webhook) -> None:
    in_doubt(business, "PAY-17")
    watch = Watching(business, chat, transports=[Refusing(chat.url)])
    assert watch.look() == []
    assert watch.run.states() == {"watch": "failed"}
    assert "Nobody was told" in str(watch.run.last("watch").error)
    healthy = Watching(business, chat)
    assert healthy.look()[0].startswith("IN DOUBT")
    assert healthy.run.result("watch")["in_doubt"] == 1


def test_each_team_gets_its_own_problems(business: Business, chat: Webhook) -> None:
    in_doubt(business, "PAY-17")
    transports = {
        "payments": [ChatNotifier(chat.url, "payments: {{ alert.subject }}")],
        "*": [ChatNotifier(chat.url, "others: {{ alert.subject }}")],
    }
    mine = Watching(business, chat, transports=transports, teams={"payments": [f"{business.dag_id[:5]}*"]})
    assert mine.look() == [f"payments: IN DOUBT: {business.dag_id} / pay, business date 2026-01-30"]


def test_an_operation_that_the_ledger_does_not_know_is_said_once_with_near_names(
    business: Business, chat: Webhook
) -> None:
    in_doubt(business, "PAY-17")
    expected = ExpectedOperation(
        key_namespace=business.dag_id, operation="payy", since=(datetime.now(UTC) - timedelta(days=9)).date()
    )
    watch = Watching(
        business, chat, expected=[expected], transports=[ChatNotifier(chat.url, "{{ alert.text }}")]
    )
    (text,) = watch.look()
    assert text.count("No such operation is known to this ledger") == 1
    assert f"Did you mean {business.dag_id} / pay?" in text
    assert watch.run.result("watch")["missing"] == 1


def test_a_problem_that_nobody_is_told_of_fails_the_watch_after_the_others_are_told(
    business: Business, chat: Webhook
) -> None:
    in_doubt(business, "PAY-17")
    told = ChatNotifier(chat.url, "{{ alert.subject }}")
    watch = Watching(business, chat, transports={"books": [told]}, teams={"books": ["books_*"]})
    assert watch.look() == []
    assert watch.run.states() == {"watch": "failed"}
    said = str(watch.run.last("watch").error)
    assert "Nobody is told of these" in said
    assert f"IN DOUBT: {business.dag_id} / pay" in said


def test_a_team_that_nobody_hears_is_refused_when_the_dag_is_parsed(chat: Webhook) -> None:
    mail = ChatNotifier(chat.url)
    with pytest.raises(ConfigurationError, match=r"nobody for team 'payment'.*Did you mean payments"):
        GuardWatchOperator(task_id="watch", transports={"payments": [mail]}, teams={"payment": ["pay_*"]})
    with pytest.raises(ConfigurationError, match="the DAGs of no team"):
        GuardWatchOperator(task_id="watch", transports={"payments": [mail]})
    GuardWatchOperator(task_id="watch", transports={"*": [mail]}, teams={"payment": ["pay_*"]})


def test_what_cannot_work_is_refused_when_the_dag_is_parsed(chat: Webhook) -> None:
    for options in ({"transports": []}, {"expected": ["statements"]}, {"lookback_days": 0}):
        with pytest.raises(ConfigurationError):
            GuardWatchOperator(task_id="watch", **{"transports": [ChatNotifier(chat.url)], **options})
    for wrong in ({"timezone": "Mars/Olympus"}, {"due": "soon"}, {"operation": ""}):
        with pytest.raises(ConfigurationError):
            ExpectedOperation(**{"key_namespace": "d", "operation": "o", "since": "2026-01-01", **wrong})


# -- documents, not only runs ---------------------------------------------------------------------------


def a_try(
    business: Business, *, index: int = -1, length: int | None = None, outcome: str = "success", **counts: int
) -> None:
    """Let a try of ``pay`` of 30 January end."""
    ledger = Ledger(business.ledger)
    space = KeySpace(business.dag_id, "pay", date(2026, 1, 30))
    who = TaskIdentity(
        business.dag_id, "pay", "scheduled__1", index, run_type="scheduled", run_after_at=JANUARY_30
    )
    number = ledger.runs.open(TaskTry(who, space, "shape", map_length=length), 60)
    ledger.runs.close(number, outcome, counts)


def missing(business: Business, **more: Any) -> list[str]:
    daily = ExpectedOperation(
        key_namespace=business.dag_id, operation="pay", since="2026-01-30", due=timedelta(hours=1), **more
    )
    watch = Watch(Ledger(business.ledger), "default")
    days = (watch.now().date() - date(2026, 1, 30)).days + 1
    return [
        str(each.happened) for each in watch.missing([daily], days) if each.business_date == date(2026, 1, 30)
    ]


@EVERYWHERE
def test_d12_a_night_that_listed_nothing_is_not_done_for_the_watch(business: Business) -> None:
    a_try(business)
    assert missing(business) == ["pay ended well for 2026-01-30, but listed nothing."]
    assert missing(business, least=0) == []
    [told] = Watch(Ledger(business.ledger), "default").empty(datetime(2026, 1, 1, tzinfo=UTC))
    assert (told.task_id, told.business_date) == ("pay", date(2026, 1, 30))
    a_try(business, documents=3, executed=3)
    assert missing(business) == []
    assert missing(business, least=4) == [
        "pay ended well for 2026-01-30 with 3 documents; at least 4 are expected."
    ]
    assert list(Watch(Ledger(business.ledger), "default").empty(datetime(2026, 1, 1, tzinfo=UTC))) == []


@EVERYWHERE
def test_d12_a_mapped_task_is_complete_when_every_instance_is(business: Business) -> None:
    a_try(business, index=0, length=4, documents=2, executed=2)
    a_try(business, index=2, length=4, documents=2, executed=1, failed=1, outcome="failed")
    assert missing(business) == ["Of pay for 2026-01-30, instances have not succeeded: 1, 2, 3."]
    for index in (1, 2, 3):
        a_try(business, index=index, length=4, documents=1, executed=1)
    assert missing(business) == []


@EVERYWHERE
def test_d12_instances_that_airflow_does_not_count_are_those_that_the_ledger_has_seen(
    business: Business,
) -> None:
    a_try(business, index=2, documents=1, executed=1)
    assert missing(business) == ["Of pay for 2026-01-30, instances have not succeeded: 0, 1."]


@EVERYWHERE
def test_d03_the_watch_tells_of_failed_documents_that_nobody_tries_again(business: Business) -> None:
    def pay(document: str, effect: Any) -> None:
        raise ValueError("no rate")

    with DAG(business.dag_id, schedule=None) as dag:
        IdempotentOperator(task_id="pay", python_callable=pay, documents=["PAY-1", "PAY-2"])
    start_run(dag, logical_at=JANUARY_30).go()
    watch = Watch(Ledger(business.ledger), "default")
    assert list(watch.left(timedelta(hours=24))) == []
    make_older(business, "execution", "finished_at", 25 * 3600)
    [told] = watch.left(timedelta(hours=24))
    assert told.documents == ("PAY-1", "PAY-2")
    assert "airflow-guard drop" in str(told.steps[0].command)


@EVERYWHERE
def test_d03_the_watch_tells_of_documents_that_were_listed_and_never_begun(business: Business) -> None:
    def pay(document: str) -> None:
        if document == "PAY-1":
            raise NotExecuted("no rate")

    with DAG(business.dag_id, schedule=None) as dag:
        IdempotentOperator(
            task_id="pay",
            python_callable=pay,
            documents=[f"PAY-{n}" for n in range(1, 1003)],
            stop_on_failure=True,
        )
    start_run(dag, logical_at=JANUARY_30).go()
    watch = Watch(Ledger(business.ledger), "default")
    listed = business.ledger.tables.listed
    with business.ledger.engine.connect() as connection:
        noted = len(connection.execute(sa.select(listed)).all())
    assert noted > 0
    assert list(watch.left(timedelta(hours=24))) == []
    make_older(business, "task_run", "ended_at", 25 * 3600)
    [told] = watch.left(timedelta(hours=24))
    assert len(told.documents) + told.more_documents == noted
    command = [word.replace("…", "withdrawn") for word in shlex.split(str(told.steps[0].command))]
    command = [word for word in command if word not in ("--ledger", business.database.url)]
    assert main([*command[1:], "--ledger", business.database.url]) == 0
    assert list(watch.left(timedelta(hours=24))) == []
