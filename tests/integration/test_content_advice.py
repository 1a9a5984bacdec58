"""What the messages about changed content advise, followed to the letter: the commands are taken out of their text."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.acts import lost_commits
from airflow_guard.commands.main import main
from airflow_guard.core.effects import External
from airflow_guard.core.errors import ContentChanged, DocumentError, InDoubt, NotExecuted, Rejected
from airflow_guard.core.states import State
from airflow_guard.store.task_runs import aware
from tests.chaos import fixtures
from tests.chaos.books import counts, mapped
from tests.integration.test_execution_content import KEY, amounts, paying, saying

if TYPE_CHECKING:
    from airflow_guard.core.report import Report
    from tests.chaos.books import Books

pytestmark = fixtures.ONE_OF_EACH
books = fixtures.books


def commands(report: Report) -> list[list[str]]:
    """Return the command lines in the message of the only error, as words."""
    [(_, error)] = report.errors
    found = re.findall(
        r"airflow-guard [a-z]+ --key [0-9a-f]{32}(?: --(?!reason)[a-z-]+)?(?: --reason \"…\")?", str(error)
    )
    return [shlex.split(each)[1:] for each in found]


def follow(books: Books, command: list[str], *more: str) -> None:
    """Run a command line as a person does who fills in the reason."""
    words = ["looked at it" if word == "…" else word for word in command]
    yes = [] if words[0] == "show" else ["--yes"]
    assert main([*words, *more, *yes, "--ledger", books.url]) == 0, words


def advice(report: Report, option: str) -> list[str]:
    [found] = [each for each in commands(report) if option in each]
    return found


def test_d09_each_advice_about_what_is_done_works(books: Books) -> None:
    books.run(paying(books), mapped(["A"], "100"), **KEY)
    changed = books.run(paying(books), mapped(["A"], "200"), try_number=2, **KEY)
    assert isinstance(changed.errors[0][1], ContentChanged)
    for command in commands(changed):
        if command[0] == "show":
            follow(books, command)
    # It stands for this content too.
    follow(books, advice(changed, "--content-stands"), "--dry-run")
    follow(books, advice(changed, "--content-stands"))
    follow(books, advice(changed, "--content-stands"))  # once more, and the same
    assert counts(books.run(paying(books), mapped(["A"], "200"), try_number=3, **KEY)) == {"replayed": 1}
    assert len(books.events("content_accepted")) == 1
    # This content must be executed as well.
    again = books.run(paying(books), mapped(["A"], "300"), try_number=4, **KEY)
    follow(books, next(each for each in commands(again) if each[0] == "rerun"), "--without-reversal")
    assert counts(books.run(paying(books), mapped(["A"], "300"), try_number=5, **KEY)) == {"executed": 1}
    # It is another document.
    other = books.run(paying(books), mapped(["A-2"], "400"), try_number=6, **KEY)
    assert counts(other) == {"executed": 1}
    # The fields do not matter.
    rules: dict[str, Any] = {"fingerprint_fields": ("no",), **KEY}
    assert counts(books.run(paying(books), mapped(["A"], "500"), try_number=7, **rules)) == {"replayed": 1}
    assert amounts(books) == [("A", "100"), ("A", "300"), ("A-2", "400")]


def test_d10_each_advice_about_what_was_rejected_works(books: Books) -> None:
    books.run(paying(books, Rejected("account closed"), sent=False), mapped(["A", "B"], "100"), **KEY)
    one = books.run(paying(books), mapped(["A"], "200"), try_number=2, **KEY)
    two = books.run(paying(books), mapped(["B"], "200"), try_number=3, **KEY)
    follow(books, advice(one, "--send-again"))
    follow(books, advice(two, "--content-stands"))
    last = books.run(paying(books), mapped(["A", "B"], "200"), try_number=4, max_rejected=1, **KEY)
    assert counts(last) == {"executed": 1, "rejected": 1}
    assert amounts(books) == [("A", "200")]


@pytest.mark.parametrize("option", ["--happened", "--did-not-happen"])
def test_d02_each_advice_about_a_doubt_with_new_content_works(books: Books, option: str) -> None:
    books.run(paying(books, TimeoutError()), mapped(["A"], "100"), **KEY)
    held = books.run(paying(books), mapped(["A"], "200"), try_number=2, side_effect=saying(None), **KEY)
    assert isinstance(held.errors[0][1], InDoubt)
    [command] = commands(held)
    follow(books, [option if word == "--happened" else word for word in command])
    after = books.run(paying(books), mapped(["A"], "200"), try_number=3, **KEY)
    if option == "--happened":
        follow(books, advice(after, "--content-stands"))
        assert counts(books.run(paying(books), mapped(["A"], "200"), try_number=4, **KEY)) == {"replayed": 1}
        assert amounts(books) == [("A", "100")]
    else:
        assert counts(after) == {"executed": 1}


def test_d01_the_advice_about_a_field_without_a_form_works(books: Books) -> None:
    listed = [{"no": "A", "amount": "1", "rates": object()}]
    refused = books.run(paying(books), listed, **KEY)
    assert isinstance(refused.errors[0][1], DocumentError)
    plain = [{"no": "A", "amount": "1", "rates": [1, 2]}]
    assert counts(books.run(paying(books), plain, try_number=2, **KEY)) == {"executed": 1}
    rules: dict[str, Any] = {"fingerprint_fields": ("amount",), **KEY}
    assert counts(books.run(paying(books), listed, try_number=3, **rules)) == {"replayed": 1}


def test_all_of_a_date_are_accepted_at_once_those_that_were_listed_with_other_content(books: Books) -> None:
    names = ["A", "B", "C"]
    books.run(paying(books), mapped(names, "100"), **KEY)
    books.run(paying(books), [*mapped(names[:2], "200"), *mapped(names[2:], "100")], try_number=2, **KEY)
    command = ["resolve", books.dag_id, "2026-01-31", "post", "--all", "--content-stands", "--reason", "…"]
    follow(books, command)
    assert sorted(event.key_text[-1] for event in books.events("content_accepted")) == ["A", "B"]
    assert counts(books.run(paying(books), mapped(names[:2], "200"), try_number=3, **KEY)) == {"replayed": 2}


# -- after a fail-over ----------------------------------------------------------------------------------


def test_a_key_that_a_fail_over_may_have_forgotten_keeps_the_content_that_it_had(books: Books) -> None:
    """Its effect may have happened with the old content, although the ledger says failed."""
    books.run(paying(books, NotExecuted("closed"), sent=True), mapped(["A"], "100"), **KEY)
    old = books.row("A")
    [stored] = books.rows()
    lost_commits.record(books.ledger, aware(stored.claimed_at), actor="ada", reason="db2 took over")
    try:
        asked: list[dict[str, Any]] = []
        effect = saying(True, asked)
        report = books.run(paying(books), mapped(["A"], "200"), try_number=2, side_effect=effect, **KEY)
        assert "changed: amount" in str(report.errors[0][1])
        assert [(each["key"], each["payload"]) for each in asked] == [(old.idempotency_key, {"no": "A"})]
        row = books.row("A")
        assert (row.state, row.fingerprint) == (State.COMPLETED, old.fingerprint)
        assert amounts(books) == [("A", "100")]
    finally:
        lost_commits.close(books.ledger, actor="ada", reason="compared")


def test_verify_of_an_external_effect_needs_no_payload_that_changed(books: Books) -> None:
    """A ``verify`` that looks at what has changed cannot answer about what was sent: it stays in doubt, and says so."""
    effect = External(verify=lambda payload: payload["amount"] == "100", settle_after=timedelta(0))
    books.run(paying(books, TimeoutError()), mapped(["A"], "100"), **KEY)
    report = books.run(paying(books), mapped(["A"], "200"), try_number=2, side_effect=effect, **KEY)
    assert counts(report) == {"in_doubt": 1}
    assert amounts(books) == [("A", "100")]
