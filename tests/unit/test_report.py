"""What a report makes of many endings: one error, whose traceback shows where it began."""

from __future__ import annotations

from airflow_guard.core.errors import (
    BlockedError,
    DocumentsFailed,
    InDoubt,
    LedgerUnavailable,
    NotExecuted,
    Rejected,
    Stopped,
    TooManyRejected,
)
from airflow_guard.core.report import Held, Outcome, Report


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_the_failure_is_caused_by_what_the_users_function_raised_first():
    report = Report()
    report.add_error(Outcome.BLOCKED, "A", BlockedError("another run"))
    first = raised(ValueError("no account"))
    doubt = InDoubt("B is in doubt")
    doubt.__cause__ = first
    report.add_error(Outcome.IN_DOUBT, "B", doubt)
    report.add_error(Outcome.FAILED, "C", raised(ValueError("no account either")))
    failure = report.failure("post")
    assert isinstance(failure, DocumentsFailed)
    assert failure.__cause__ is first
    assert [str(cause) for cause in report.causes] == ["no account", "no account either"]


def test_without_one_it_is_caused_by_the_first_error():
    report = Report()
    blocked = BlockedError("another run")
    report.add_error(Outcome.BLOCKED, "A", blocked)
    report.add_error(Outcome.BLOCKED, "B", BlockedError("changed"))
    failure = report.failure("post")
    assert isinstance(failure, DocumentsFailed)
    assert failure.__cause__ is blocked


def test_rejections_beyond_the_limit_show_the_first_of_them():
    report = Report()
    first = raised(Rejected("unknown account"))
    report.add_error(Outcome.REJECTED, "A", first)
    failure = report.failure("post")
    assert isinstance(failure, TooManyRejected)
    assert failure.__cause__ is first


def test_a_single_document_s_error_is_the_failure_and_keeps_its_own_cause():
    report, why = Report(single=True), raised(OSError("gone"))
    doubt = InDoubt("in doubt")
    doubt.__cause__ = why
    report.add_error(Outcome.IN_DOUBT, None, doubt)
    assert report.failure("post") is doubt
    assert doubt.__cause__ is why
    alone = Report(single=True)
    alone.add_error(Outcome.BLOCKED, None, error := BlockedError("another run"))
    assert alone.failure("post") is error
    assert error.__cause__ is None


def test_only_waits_is_said_of_nothing_that_failed():
    report = Report()
    assert not report.only_waits()
    report.add(Outcome.EXECUTED, "A")
    report.add_waiting(Held("0" * 32, "B", "somebody"), BlockedError("elsewhere"))
    assert report.only_waits()
    report.stopped = Stopped("asked to stop")
    assert report.only_waits(), (
        "whether a task that was asked to stop may wait is not its documents' question"
    )
    report.add_error(Outcome.FAILED, "C", ValueError())
    assert not report.only_waits()


def test_an_error_that_others_refer_to_is_never_given_a_cause():
    """Else the two would be each other's cause, and whoever follows them would never come to an end."""
    report = Report()
    report.problem = LedgerUnavailable("down")
    unrecorded = InDoubt("could not be written")
    unrecorded.__cause__ = report.problem
    report.add_error(Outcome.IN_DOUBT, "A", unrecorded)
    report.add_error(Outcome.IN_DOUBT, "B", InDoubt("could not be written"))
    assert report.failure("post") is report.problem
    assert report.problem.__cause__ is None
    assert report.causes == []


def test_an_error_that_is_its_own_cause_has_nothing_behind_it():
    error = NotExecuted("closed")
    error.__cause__ = error
    report = Report()
    report.add_error(Outcome.FAILED, "A", error)
    report.add_error(Outcome.FAILED, "B", error)
    assert report.causes == []
    assert report.failure("post").__cause__ is error
