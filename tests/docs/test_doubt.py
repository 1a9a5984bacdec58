"""The page for the person on duty, followed from top to bottom in a night like the one that it tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard import Rejected
from airflow_guard.testing import TestLedger
from tests.docs.pages import page
from tests.docs.shell import Shell
from tests.docs.test_tutorial import occurs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def a_night(url: str) -> None:
    """Let four payments end in four ways."""

    def send(document: str, effect: object) -> dict[str, str]:
        with effect:  # type: ignore[attr-defined]
            if document == "PAY-17":
                raise TimeoutError("no answer from the bank within 30 s")
            if document == "PAY-18":
                raise Rejected("account closed")
        if document == "PAY-19":
            raise OSError("archive folder is full")
        return {"receipt": document}

    with TestLedger(url) as ledger:
        documents = [f"PAY-{number}" for number in (16, 17, 18, 19)]
        day = "2026-01-30"
        ledger.run(
            send, documents=documents, key_namespace="payments", business_date=day, deployment="default"
        )


def test_the_doubt_is_resolved_as_the_page_says(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_night(f"sqlite:///{tmp_path}/bank.db")
    monkeypatch.setenv("AIRFLOW_CONN_BANK", f'{{"conn_type": "sqlite", "host": "{tmp_path}/bank.db"}}')
    monkeypatch.setenv("AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID", "bank")
    shell, output = Shell(tmp_path, monkeypatch), ""
    for fence in page("docs/how-to/resolve-a-doubt.md").fences:
        if fence.language == "bash":
            output = shell.run(fence.text)
        elif output:  # the first one is what somebody has sent
            for line in fence.text.splitlines():
                assert occurs(line, output), f"{fence}: {line!r} is not in:\n{output}"
    assert "4 done" in shell.run("airflow-guard show payments 2026-01-30")
