"""Alerts through Airflow's callbacks, a real mail server and a real web server."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.exceptions import AirflowFailException
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.bases.operator import BaseOperator

from airflow_guard import (
    ConfigurationError,
    External,
    GuardNotifier,
    IdempotentOperator,
    ReconciliationSensor,
    Rejected,
    Side,
    alert_on_dag_failure,
    alert_on_failure,
    alert_on_skipped,
    guard_defaults,
    month_end,
)
from tests.airflow_runs import start_run
from tests.alerting import ChatNotifier, MailServer, Webhook, mail
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.conftest import Business
    from tests.processes import Worker

pytestmark = databases("sqlite")
JANUARY_30 = datetime(2026, 1, 30, tzinfo=UTC)


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    with MailServer() as server:
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", server.connection)
        yield server


@pytest.fixture
def chat() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.close()


def sends_mail(**options: Any) -> GuardNotifier:
    return GuardNotifier(transports=[mail()], **options)


class Bank:
    """An effect that goes wrong in the way that a test wants."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.calls: list[str] = []

    def pay(self, document: str) -> None:
        self.calls.append(document)
        if self.error is not None and document == "PAY-17":
            raise self.error


def paying(business: Business, bank: Bank, **options: Any) -> DAG:
    with DAG(business.dag_id, schedule="@daily", start_date=JANUARY_30) as dag:
        IdempotentOperator(
            task_id="send", python_callable=bank.pay, documents=["PAY-16", "PAY-17"], **options
        )
    return dag


# -- through Airflow --------------------------------------------------------------------------------------


def test_a_doubt_wakes_somebody_with_all_that_is_needed(business: Business, mailbox: MailServer) -> None:
    bank = Bank(TimeoutError("no answer from postgresql://guard:hunter2@bank/x within 30 s"))
    start_run(paying(business, bank, on_failure_callback=sends_mail()), logical_at=JANUARY_30).go()

    (message,) = mailbox.messages
    assert message["To"] == "oncall@example.com"
    assert message["Subject"] == f"FAILED, final (1/1): {business.dag_id} / send, business date 2026-01-30"
    body = mailbox.body()
    (key,) = [row.key_hash for row in business.ledger_rows() if row.state == "in_doubt"]
    assert f"airflow-guard resolve --key {key} --happened" in body
    assert "PAY-17 (in doubt)" in body
    assert "2: 1 in doubt, 1 done now" in body
    assert "TimeoutError: no answer from postgresql://guard:***@bank/x" in body
    assert f"/dags/{business.dag_id}/runs/" in body
    assert "hunter2" not in message.as_string()


def test_a_question_is_told_when_it_is_asked_and_again_when_it_is_settled(
    business: Business, mailbox: MailServer
) -> None:
    bank = Bank(TimeoutError("no answer"))
    effect = External(in_doubt="ask")
    dag = paying(business, bank, side_effect=effect, **guard_defaults(alerts=[mail()]))
    run = start_run(dag, logical_at=JANUARY_30).go(run_triggers=False)
    where = f"{business.dag_id} / send, business date 2026-01-30"
    assert mailbox.subjects() == [f"ANSWER NEEDED: {where}"]
    assert "It is not known whether PAY-17 happened. A person is asked, until " in mailbox.body()
    assert "Required Actions" in mailbox.body()
    (field,) = set(run.question("send").params) - {"reason"}
    run.answer("send", "Settle", {field: "happened", "reason": "in their report"})
    assert run.states() == {"send": "success"}
    assert mailbox.subjects()[1:] == [f"RESOLVED (was: ANSWER NEEDED): {where}"]


def test_a_question_that_nobody_answers_is_told_as_a_failure_too(
    business: Business, mailbox: MailServer
) -> None:
    dag = paying(
        business,
        Bank(TimeoutError("no answer")),
        side_effect=External(in_doubt="ask"),
        **guard_defaults(alerts=[mail()]),
    )
    run = start_run(dag, logical_at=JANUARY_30).go(run_triggers=False)
    run.answer("send", None)
    assert [subject.partition(":")[0] for subject in mailbox.subjects()] == [
        "ANSWER NEEDED",
        "FAILED, final (1/1)",
    ]
    assert "airflow-guard resolve --key" in mailbox.body()


def test_the_same_try_is_told_once_and_the_next_try_again(
    business: Business, mailbox: MailServer, chat: Webhook
) -> None:
    bank = Bank(RuntimeError("no"))
    defaults = guard_defaults(alerts=[mail(), ChatNotifier(chat.url)], retries=1, retry_delay=timedelta(0))
    with DAG(business.dag_id, schedule="@daily", start_date=JANUARY_30, default_args=defaults) as dag:
        IdempotentOperator(
            task_id="send", python_callable=lambda connection: bank.pay("PAY-17"), side_effect="database"
        )
    run = start_run(dag, logical_at=JANUARY_30).go()
    assert [subject.partition(":")[0] for subject in mailbox.subjects()] == ["will retry (1/2)"]
    assert "Nothing. Airflow tries again by itself" in mailbox.body()
    run.go()
    assert [subject.partition(":")[0] for subject in mailbox.subjects()] == [
        "will retry (1/2)",
        "FAILED, final (2/2)",
    ]
    assert len(chat.posted) == 2

    bank.error = None
    run.clear().go(dag)
    assert run.states() == {"send": "success"}
    assert mailbox.subjects()[2].startswith("RESOLVED (was: FAILED")
    assert len(mailbox.messages) == len(chat.posted) == 3
    run.clear().go(dag)
    assert len(mailbox.messages) == 3, "nothing to resolve any more"


def test_a_task_that_was_always_fine_says_nothing(business: Business, mailbox: MailServer) -> None:
    with DAG(business.dag_id, schedule=None, default_args=guard_defaults(alerts=[mail()])) as dag:
        IdempotentOperator(task_id="send", python_callable=lambda: None)
    assert start_run(dag, logical_at=JANUARY_30).go().states() == {"send": "success"}
    assert mailbox.messages == []


def test_callbacks_that_a_dag_has_are_kept(business: Business, mailbox: MailServer) -> None:
    called = []
    defaults = guard_defaults({"on_failure_callback": lambda context: called.append("own")}, alerts=[mail()])
    with DAG(business.dag_id, schedule=None, default_args=defaults) as dag:
        IdempotentOperator(task_id="send", python_callable=lambda: 1 / 0)
    start_run(dag, logical_at=JANUARY_30).go()
    assert called == ["own"]
    assert len(mailbox.messages) == 1


def test_a_skipped_task_is_told_with_its_reason_known(business: Business, mailbox: MailServer) -> None:
    with DAG(business.dag_id, schedule=None) as dag:
        IdempotentOperator(
            task_id="send", python_callable=lambda: None, business_date=month_end(otherwise="skip"),
            on_skipped_callback=alert_on_skipped(mail()),
        )  # fmt: skip
    assert start_run(dag, logical_at=JANUARY_30).go().states() == {"send": "skipped"}
    assert mailbox.subjects() == [f"SKIPPED: {business.dag_id} / send, business date unknown"]


def test_breaks_are_told_with_the_totals_of_both_sides(business: Business, mailbox: MailServer) -> None:
    with business.ledger.engine.begin() as connection:
        for table, amounts in (("a", ("10.00", "5.50")), ("b", ("10.00",))):
            connection.exec_driver_sql(f"CREATE TABLE {table} (no TEXT, amount TEXT)")
            for number, amount in enumerate(amounts):
                connection.exec_driver_sql(f"INSERT INTO {table} VALUES ('P-{number}', '{amount}')")
    sides = {
        name: Side(conn_id="guard_ledger", sql=f"SELECT no, amount FROM {table}", key="no", amount="amount")
        for name, table in (("source", "a"), ("target", "b"))
    }
    with DAG(business.dag_id, schedule=None) as dag:
        ReconciliationSensor(
            task_id="reconcile", poke_interval=0.01, on_failure_callback=alert_on_failure(mail()), **sides
        )
    start_run(dag, logical_at=JANUARY_30).go()
    body = mailbox.body()
    assert "Source and target differ: 1 open break (missing in target)." in body
    assert "source / target 2 / 1 rows, 15.5 / 10 (variance -5.5); allowed: nothing" in body
    assert "missing_in_target P-1" in body
    assert "Correct the side that is wrong." in body


def test_r15_the_change_is_told_once(business: Business, mailbox: MailServer) -> None:
    """A row that arrives after its date has passed: one alert, of the run that looked again, and none later."""
    with business.ledger.engine.begin() as connection:
        for table in ("a", "b"):
            connection.exec_driver_sql(f"CREATE TABLE {table} (no TEXT, amount TEXT, day TEXT)")
            for day in ("2026-01-30", "2026-01-31", "2026-02-01"):
                connection.exec_driver_sql(f"INSERT INTO {table} VALUES ('P {day}', '1.00', '{day}')")

    def dag() -> DAG:
        with DAG(business.dag_id, schedule=None) as dag:
            ReconciliationSensor(
                task_id="reconcile", poke_interval=0.01, on_failure_callback=alert_on_failure(mail()),
                **{
                    name: Side(conn_id="guard_ledger", table=table, key="no", where="day = :business_date")
                    for name, table in (("source", "a"), ("target", "b"))
                },
            )  # fmt: skip
        return dag

    day = timedelta(days=1)
    assert start_run(dag(), logical_at=JANUARY_30).go().states() == {"reconcile": "success"}
    with business.ledger.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO b VALUES ('late', '10.00', '2026-01-30')")
    assert start_run(dag(), logical_at=JANUARY_30 + day).go().states() == {"reconcile": "failed"}
    if not version("apache-airflow").startswith("3.1."):  # whose dag.test() tells a callback no exception
        assert "target +1 row, +10" in mailbox.body()
    assert start_run(dag(), logical_at=JANUARY_30 + 2 * day).go().states() == {"reconcile": "success"}
    assert len(mailbox.messages) == 1, "the break is known by then, and the later run goes on"


def test_a_plain_task_of_airflow_gets_an_alert_too(business: Business, mailbox: MailServer) -> None:
    class Broken(BaseOperator):
        def execute(self, context: Any) -> None:
            raise ValueError("no <file>")

    with DAG(business.dag_id, schedule=None) as dag:
        Broken(task_id="load", on_failure_callback=sends_mail())
    start_run(dag, logical_at=JANUARY_30).go()
    assert mailbox.subjects() == [f"FAILED, final (1/1): {business.dag_id} / load, business date 2026-01-30"]
    if not version("apache-airflow").startswith("3.1."):  # whose dag.test() tells a callback no exception
        assert "ValueError: no &lt;file&gt;" in mailbox.body()


# -- contexts ---------------------------------------------------------------------------------------------


def ti(business: Business, **more: Any) -> SimpleNamespace:
    facts = {"dag_id": business.dag_id, "run_id": "run", "task_id": "send", "map_index": -1, "try_number": 1}
    return SimpleNamespace(**{**facts, "max_tries": 0, **more})


def known_run(business: Business) -> str:
    """A run that the ledger knows, with a task that failed."""
    run = start_run(paying(business, Bank(TimeoutError("no answer"))), logical_at=JANUARY_30).go()
    return run.run_id


def test_c23_every_context_gives_an_alert(
    business: Business, mailbox: MailServer, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = known_run(business)
    dag = SimpleNamespace(dag_id=business.dag_id, tags=(), tasks=())
    contexts: dict[str, dict[str, Any]] = {
        "reason": {"dag": dag, "run_id": run_id, "reason": "task_failure"},
        "no exception": {"ti": ti(business, run_id=run_id), "task": SimpleNamespace(task_id="send")},
        "text": {"ti": ti(business, run_id=run_id, try_number=2), "exception": "it broke"},
        "deadline": {
            "dag_run": {"dag_id": business.dag_id, "run_id": run_id},
            "deadline": {"deadline_time": "2026-01-30T06:00:00Z"},
        },
        "nothing": {},
        "unknown run": {"ti": ti(business, run_id="never_heard_of")},
    }
    for context in contexts.values():
        sends_mail()(context)
    assert len(mailbox.messages) == len(contexts)
    said = dict(zip(contexts, zip(mailbox.subjects(), map(mailbox.body, range(6)), strict=True), strict=True))
    today = datetime.now(UTC).date().isoformat()
    for subject, body in said.values():
        assert "None" not in subject + body
        assert today not in subject
    for name in ("reason", "no exception", "text", "deadline"):
        assert business.dag_id in said[name][0]
        assert "business date 2026-01-30" in said[name][0], name
        assert run_id in said[name][1]
    assert "DAG-level" in said["reason"][0]
    assert said["deadline"][0].startswith("LATE: ")
    assert "no answer" in said["no exception"][1], "what the context lacks is in the ledger"
    assert "it broke" in said["text"][1]
    assert said["nothing"][0].startswith("FAILED (retries unknown): unknown / unknown, business date unknown")
    assert "business date unknown" in said["unknown run"][0]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("more", "announce", "subject"),
    [
        ({"try_number": 1, "max_tries": 3, "state": "up_for_retry"}, True, "will retry (1/4)"),
        ({"try_number": 1, "max_tries": 3}, True, "will retry (1/4)"),
        ({"try_number": 1, "max_tries": 3, "state": "up_for_retry"}, False, None),
        ({"try_number": 4, "max_tries": 3, "state": "failed"}, False, "FAILED, final (4/4)"),
        ({"try_number": 2, "max_tries": None}, True, "FAILED (retries unknown)"),
    ],
)
def test_r11_a_failure_callback_that_is_called_for_a_retry_says_so(
    business: Business, chat: Webhook, more: dict[str, Any], announce: bool, subject: str | None
) -> None:
    low = ChatNotifier(chat.url, "{{ alert.severity }} {{ alert.text }}")
    notifier = GuardNotifier(transports=[low], on="failure", announce_retries=announce)
    notifier({"ti": ti(business, **more), "exception": ValueError("no")})
    if subject is None:
        assert chat.posted == []
        return
    (text,) = chat.posted
    assert text.startswith(f"{'low' if 'retry' in subject else 'high'} {subject}: ")


def test_an_exception_that_ends_retries_is_final(business: Business, chat: Webhook) -> None:
    notifier = GuardNotifier(transports=[ChatNotifier(chat.url)])
    notifier({"ti": ti(business, max_tries=3), "exception": AirflowFailException("no")})
    assert chat.posted[0].startswith("FAILED, final (1/4)")


# -- once, whoever asks -----------------------------------------------------------------------------------


def call_back(facts: dict[str, Any], url: str) -> None:
    """The failure callback, in a process of its own."""
    GuardNotifier(transports=[ChatNotifier(url)])({"ti": SimpleNamespace(**facts)})


def test_c21_two_processes_that_call_back_for_one_try_send_one_message(
    business: Business, chat: Webhook, start_worker: Callable[..., Worker]
) -> None:
    facts = vars(ti(business))
    for worker in [start_worker(call_back, facts=facts, url=chat.url) for _ in range(2)]:
        worker.result()
    assert len(chat.posted) == 1
    for other in ({"try_number": 2}, {"map_index": 3}, {"map_index": 4}, {"try_number": 2}):
        call_back({**facts, **other}, chat.url)
    assert len(chat.posted) == 4


def test_c21_without_the_ledger_the_message_is_sent(
    business: Business, chat: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GUARD_LEDGER", "postgres://nobody@127.0.0.1:9/nowhere")
    for _ in range(2):
        call_back(vars(ti(business)), chat.url)
    assert len(chat.posted) == 2
    assert "business date unknown" in chat.posted[0]
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", "not_there")
    call_back(vars(ti(business)), chat.url)
    assert len(chat.posted) == 3


def test_two_notifiers_of_one_class_in_two_callbacks_are_both_told_and_once(business: Business) -> None:
    with closing(Webhook()) as one, closing(Webhook()) as other:
        for _ in range(2):  # as Airflow calls back twice, each time with notifiers that are made anew
            for chat in (one, other):
                GuardNotifier(transports=[ChatNotifier(chat.url)], on="failure")({"ti": ti(business)})
        assert [len(chat.posted) for chat in (one, other)] == [1, 1]


def test_a_transport_that_refuses_is_logged_and_tried_again_and_the_other_delivers(
    business: Business, mailbox: MailServer, chat: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox.refuse = "554 mailbox of guard:hunter2 password=hunter2 is full"
    both = GuardNotifier(transports=[mail(), ChatNotifier(chat.url)])
    context = {"ti": ti(business)}
    both(context)
    assert (len(mailbox.messages), len(chat.posted)) == (0, 1)
    assert "NOT delivered by SmtpNotifier" in caplog.text
    mailbox.refuse = None
    both(context)
    assert (len(mailbox.messages), len(chat.posted)) == (1, 1)


class Explosive(BaseNotifier):
    """A transport that goes wrong as badly as it can."""

    def notify(self, context: Any) -> None:
        raise SystemError("boom")


def test_an_alert_that_fails_does_not_change_what_became_of_the_task(
    business: Business, mailbox: MailServer
) -> None:
    bank = Bank(None)
    alerts = [Explosive(), mail()]
    run = start_run(paying(business, bank, **guard_defaults(alerts=alerts)), logical_at=JANUARY_30).go()
    assert run.states() == {"send": "success"}
    assert bank.calls == ["PAY-16", "PAY-17"]


def test_sync_and_async_say_the_same(business: Business, mailbox: MailServer, chat: Webhook) -> None:
    run_id = known_run(business)
    for number, way in enumerate(("sync", "async")):
        transports = [mail(), ChatNotifier(chat.url)]
        context = {"ti": ti(business, run_id=run_id, map_index=-1, try_number=1)}
        notifier = GuardNotifier(transports=transports, on="retry" if number else "failure", context=context)
        if way == "sync":
            notifier(context)
        else:

            async def wait(notifier: GuardNotifier = notifier) -> None:
                await notifier

            asyncio.run(wait())
    assert len(mailbox.messages) == len(chat.posted) == 2
    first, second = (body.split("Since")[0].split("\n", 1)[1] for body in chat.posted)
    assert first == second


def test_templates_of_a_transport_have_every_fact(business: Business, chat: Webhook) -> None:
    text = "{{ alert.dag_id }} {{ alert.task_id }} {{ alert.business_date }} {{ ti.try_number }} {{ alert.stage }}"
    transport = ChatNotifier(chat.url, text)
    notifier = GuardNotifier(transports=[transport])
    for number in (1, 2):
        notifier({"ti": ti(business, run_id="r", try_number=number)})
    assert chat.posted == [f"{business.dag_id} send unknown {number} first" for number in (1, 2)]
    assert transport.text == text, "the notifier itself is left as it is"


def test_a_text_of_others_is_not_a_template(business: Business, chat: Webhook) -> None:
    GuardNotifier(transports=[ChatNotifier(chat.url)])(
        {"ti": ti(business), "exception": "{{ 7 * 7 }}{% x %}"}
    )
    assert "{{ 7 * 7 }}{% x %}" in chat.posted[0]


def test_a_team_gets_its_own_alerts(business: Business, chat: Webhook) -> None:
    routes = {
        "payments": [ChatNotifier(chat.url, "payments {{ alert.team }}")],
        "*": [ChatNotifier(chat.url, "others")],
    }
    tagged = SimpleNamespace(dag_id=business.dag_id, tags={"x", "team:payments"}, tasks=())
    GuardNotifier(transports=routes)({"ti": ti(business), "dag": tagged})
    GuardNotifier(transports=routes)({"ti": ti(business, try_number=2)})
    GuardNotifier(transports=routes, team="elsewhere")({"ti": ti(business, try_number=3)})
    assert chat.posted == ["payments payments", "others", "others"]


def test_a_team_without_a_transport_is_logged(business: Business, caplog: pytest.LogCaptureFixture) -> None:
    notifier = GuardNotifier(transports={"payments": [mail()]}, team="payment")
    notifier({"ti": ti(business)})
    assert "Nobody is told of this: transports has neither team 'payment'" in caplog.text


def test_a_failed_run_whose_documents_were_rejected_was_not_killed(
    business: Business, mailbox: MailServer
) -> None:
    run = start_run(paying(business, Bank(Rejected("unknown account"))), logical_at=JANUARY_30).go()
    dag = SimpleNamespace(dag_id=business.dag_id, tags=(), tasks=())
    alert_on_dag_failure(mail())({"dag": dag, "run_id": run.run_id, "reason": "task_failure"})
    assert "Task send: " in mailbox.body()
    assert "1 of 2 documents were rejected, more than max_rejected=0" in mailbox.body()
    assert "killed" not in mailbox.body()


def test_a_failed_run_is_told_once_with_the_task_that_failed(business: Business, mailbox: MailServer) -> None:
    run_id = known_run(business)
    dag = SimpleNamespace(dag_id=business.dag_id, tags=(), tasks=())
    for _ in range(2):
        alert_on_dag_failure(mail())({"dag": dag, "run_id": run_id, "reason": "timed_out"})
    assert mailbox.subjects() == [f"RUN FAILED: {business.dag_id} / DAG-level, business date 2026-01-30"]
    assert "The run took longer than its dagrun_timeout. Task send:" in mailbox.body()


def test_what_cannot_work_is_refused_when_the_dag_is_parsed() -> None:
    for options in (
        {"transports": []},
        {"transports": {"payments": []}},
        {"transports": [mail()], "on": "never"},
        {"transports": mail()},
        {"transports": {"payments": mail()}},
        {"transports": ["oncall@example.com"]},
    ):
        with pytest.raises(ConfigurationError):
            GuardNotifier(**options)  # type: ignore[arg-type]
    assert guard_defaults({"retries": 2}, ledger_conn_id="x") == {"retries": 2, "ledger_conn_id": "x"}


def test_a_misspelt_default_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ConfigurationError, match=r"guard_defaults\(alert=…\).*Did you mean alerts\?"):
        guard_defaults(alert=[mail()])
    with pytest.raises(ConfigurationError, match="Did you mean retries"):
        guard_defaults(retrys=3)
    with pytest.raises(ConfigurationError, match="only a callback of its own takes that"):
        guard_defaults(alerts=[mail()], escalate_after=timedelta(hours=1))
    kept = guard_defaults(
        {"namespace": "of another operator"}, poke_interval=5, wait_timeout=60, depends_on_past=True
    )
    assert set(kept) == {"namespace", "poke_interval", "wait_timeout", "depends_on_past"}


def test_a_date_is_never_todays(business: Business, chat: Webhook) -> None:
    GuardNotifier(transports=[ChatNotifier(chat.url, "{{ alert.business_date }}")])(
        {
            "ti": ti(business),
            "dag_run": SimpleNamespace(run_after=datetime.now(UTC), start_date=datetime.now(UTC)),
        }
    )
    assert chat.posted == ["unknown"]
    assert date.today().isoformat() not in chat.posted[0]  # noqa: DTZ011
