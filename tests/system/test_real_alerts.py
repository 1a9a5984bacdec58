"""Alerts under the real scheduler: from the worker, and from the DAG processor when the worker's process is gone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.system.conftest import RealAirflow

# Whichever test comes first starts Airflow.
DAG = "alarmed"
DAY = "2026-03-25"


def mails_of(world: RealAirflow, run_id: str) -> dict[str, str]:
    """What the mail server has got about a run: what came, to the whole message."""
    bodies = {subject: world.mailbox.body(n) for n, subject in enumerate(world.mailbox.subjects())}
    return {subject.partition(": ")[0]: subject + body for subject, body in bodies.items() if run_id in body}


LATE = ("alarmed_lost", "alarmed_slow", "alarmed_deferred")


@pytest.fixture(scope="module")
def late_runs(real_airflow: RealAirflow) -> dict[str, str]:
    """Runs whose failures take their time: begun first, looked at last."""
    real_airflow.airflow.wait_for_dag(DAG, *LATE)
    client = real_airflow.airflow.client
    return {dag_id: client.trigger(dag_id, conf={"business_date": DAY}) for dag_id in LATE}


@pytest.mark.usefixtures("late_runs")
def test_a_failure_its_retry_and_a_killed_process_are_told_once_each(real_airflow: RealAirflow) -> None:
    client = real_airflow.airflow.client
    runs = {how: client.trigger(DAG, conf={"business_date": DAY, "how": how}) for how in ("failed", "killed")}
    for run_id in runs.values():
        assert client.wait_for_run(DAG, run_id).state == "failed"
    wanted = {"will retry (1/2)", "FAILED, final (2/2)", "RUN FAILED"}
    for how, run_id in runs.items():
        client.wait(lambda: wanted <= set(mails_of(real_airflow, run_id)), f"alerts of {how}")  # noqa: B023

    for how, run_id in runs.items():
        mails = mails_of(real_airflow, run_id)
        assert set(mails) == wanted
        for text in mails.values():
            assert f"business date {DAY}, cycle {how}" in text, (
                "looked up in the ledger where the context lacks it"
            )
            assert "None" not in text
            assert "hunter2" not in text
        assert f"{DAG} / DAG-level" in mails["RUN FAILED"]
    failed, killed = (mails_of(real_airflow, runs[how]) for how in ("failed", "killed"))
    assert "ConnectionRefusedError: no route to postgresql://guard:***@bank/x" in failed["will retry (1/2)"]
    assert "PAY-failed (failed)" in failed["FAILED, final (2/2)"]
    assert "was killed, or lost contact" in killed["will retry (1/2)"]
    assert "PAY-killed (in doubt)" in killed["FAILED, final (2/2)"]
    assert "airflow-guard resolve --key" in killed["FAILED, final (2/2)"].replace(
        " --ledger core_banking", ""
    )
    subjects = [subject for subject in real_airflow.mailbox.subjects() if f"{DAG} /" in subject]
    assert len(subjects) == 6, "each once, whichever process called back"


def test_a_lost_heartbeat_and_both_timeouts_are_told_once_to_everybody(
    real_airflow: RealAirflow, late_runs: dict[str, str]
) -> None:
    """Airflow calls back twice for a task whose heartbeat is gone: one message."""
    client = real_airflow.airflow.client
    for dag_id, run_id in late_runs.items():
        assert client.wait_for_run(dag_id, run_id).state == "failed"
    chat = real_airflow.chat.posted

    def told(run_id: str) -> tuple[list[str], list[str]]:
        mails = [
            subject + real_airflow.mailbox.body(number)
            for number, subject in enumerate(real_airflow.mailbox.subjects())
            if run_id in real_airflow.mailbox.body(number)
        ]
        return mails, [text for text in chat if run_id in text]

    def all_told() -> bool:
        return all(mails and posts for mails, posts in map(told, late_runs.values()))

    client.wait(all_told, "the alerts")
    client.wait(lambda: called_back_twice(real_airflow), "the second callback")
    expected = {
        "alarmed_lost": ("was killed, or lost contact", "airflow-guard show"),
        "alarmed_slow": ("AirflowTaskTimeout", "PAY-slow (in doubt)", "airflow-guard resolve"),
        "alarmed_deferred": ("TaskDeferralTimeout", "wait", "clear the task"),
    }
    for dag_id, run_id in late_runs.items():
        mails, posts = told(run_id)
        assert (len(mails), len(posts)) == (1, 1), dag_id
        for text in (*mails, *posts):
            assert f"business date {DAY}" in text or DAY in text, dag_id
            assert "FAILED, final (1/1)" in text
            assert "None" not in text
            for words in expected[dag_id]:
                assert words in text, (dag_id, words, text)


def called_back_twice(world: RealAirflow) -> bool:
    """Whether the DAG processor was asked to tell of the lost task, and then once more."""
    logs = [path for path in (world.airflow.log_folder / "dags").rglob("*alarmed.py*") if path.is_file()]
    text = "".join(path.read_text(errors="replace") for path in logs)
    again = re.search(r"ChatNotifier \w+ was told of this problem before", text)
    return "Alert delivered by ChatNotifier" in text and again is not None
