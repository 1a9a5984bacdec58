"""Alerts under the real scheduler: from the worker, and from the DAG processor when the worker's process is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.system.conftest import RealAirflow

DAG = "alarmed"
DAY = "2026-03-25"


def mails_of(world: RealAirflow, run_id: str) -> dict[str, str]:
    """What the mail server has got about a run: what came, to the whole message."""
    bodies = {subject: world.mailbox.body(n) for n, subject in enumerate(world.mailbox.subjects())}
    return {subject.partition(": ")[0]: subject + body for subject, body in bodies.items() if run_id in body}


def test_a_failure_its_retry_and_a_killed_process_are_told_once_each(real_airflow: RealAirflow) -> None:
    client = real_airflow.airflow.client
    real_airflow.airflow.wait_for_dag(DAG)
    runs = {how: client.trigger(DAG, conf={"business_date": DAY, "how": how}) for how in ("failed", "killed")}
    for run_id in runs.values():
        assert client.wait_for_run(DAG, run_id, timeout_s=120).state == "failed"
    wanted = {"will retry (1/2)", "FAILED, final (2/2)", "RUN FAILED"}
    for how, run_id in runs.items():
        client.wait(lambda: wanted <= set(mails_of(real_airflow, run_id)), f"alerts of {how}", timeout_s=60)  # noqa: B023

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
    subjects = [subject for subject in real_airflow.mailbox.subjects() if DAG in subject]
    assert len(subjects) == 6, "each once, whichever process called back"
