"""Side effects: combinations that cannot work are refused when the DAG is parsed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_guard.core.effects import Database, External, side_effect_of
from airflow_guard.core.errors import ConfigurationError

MINUTES = timedelta(minutes=5)


class Refused(ConnectionRefusedError):
    """A type that proves that nothing was sent."""


def asked(document, idempotency_key):
    return None


def test_the_strings_are_shorthand():
    assert side_effect_of("database") == Database()
    assert side_effect_of("external") == External()
    given = External(verify=asked, settle_after=MINUTES)
    assert side_effect_of(given) is given


@pytest.mark.parametrize("value", ["Database", "", "none", None, 1, External, Database, True])
def test_anything_else_is_refused_with_what_there_is(value):
    with pytest.raises(ConfigurationError, match=r"External\(…\)"):
        side_effect_of(value)


def test_by_default_a_doubt_is_held_for_a_person():
    effect = External()
    assert (effect.in_doubt, effect.verify, effect.safe_errors) == ("hold", None, ())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ask_timeout": timedelta(hours=1)}, "no meaning without"),
        (
            {"ask_fields": ["amount"], "in_doubt": "retry", "receiver_remembers": timedelta(1)},
            "no meaning without",
        ),
        ({"in_doubt": "ask", "ask_timeout": timedelta(0)}, "above zero"),
        ({"in_doubt": "ask", "ask_timeout": "60"}, "above zero"),
        ({"in_doubt": "ask", "ask_fields": "amount"}, "a list of names"),
        ({"in_doubt": "ask", "ask_fields": [1]}, "a list of names"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, says):
    with pytest.raises(ConfigurationError, match=says):
        External(**options)


def test_what_reverses_must_be_callable():
    for effect in (External, Database):
        with pytest.raises(ConfigurationError, match="on_rerun"):
            effect(on_rerun="reverse")


@pytest.mark.parametrize("word", ["", "HOLD", "replay", None, True])
def test_another_word_for_in_doubt_is_refused(word):
    with pytest.raises(ConfigurationError, match="in_doubt"):
        External(in_doubt=word)


# -- verify ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settle_after", [None, "5m", "300", -MINUTES, -1, True, float("inf"), float("nan")])
def test_a_no_without_a_time_to_settle_proves_nothing(settle_after):
    with pytest.raises(ConfigurationError, match="settle_after"):
        External(verify=asked, settle_after=settle_after)


@pytest.mark.parametrize(("given", "seconds"), [(60, 60), (0.5, 0.5), (0, 0), (timedelta(minutes=1), 60)])
def test_d08_durations_are_a_timedelta_or_seconds(given, seconds):
    effect = External(verify=asked, settle_after=given)
    assert (effect.settle_after, effect.settle_s) == (timedelta(seconds=seconds), seconds)
    if given:
        repeated = External(in_doubt="retry", receiver_remembers=given)
        assert (repeated.receiver_remembers, repeated.repeats_s) == (timedelta(seconds=seconds), seconds)
        asks = External(in_doubt="ask", ask_timeout=given)
        assert (asks.ask_timeout, asks.question_s) == (timedelta(seconds=seconds), seconds)


def test_a_call_that_cannot_be_on_its_way_settles_at_once():
    assert External(verify=asked, settle_after=timedelta(0)).settle_after == timedelta(0)


def test_settle_after_without_verify_has_no_meaning():
    with pytest.raises(ConfigurationError, match="verify"):
        External(settle_after=MINUTES)


@pytest.mark.parametrize("verify", [True, "asked_bank"])
def test_verify_must_be_callable(verify):
    with pytest.raises(ConfigurationError, match="callable"):
        External(verify=verify, settle_after=MINUTES)


# -- retry -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remembers", [None, timedelta(0), 0, -MINUTES, "86400"])
def test_repeating_needs_a_receiver_that_remembers(remembers):
    with pytest.raises(ConfigurationError, match="receiver_remembers"):
        External(in_doubt="retry", receiver_remembers=remembers)


def test_repeating_goes_with_verify():
    effect = External(
        verify=asked, settle_after=MINUTES, in_doubt="retry", receiver_remembers=timedelta(days=1)
    )
    assert effect.receiver_remembers == timedelta(days=1)


# -- safe errors -------------------------------------------------------------------------------------------


def test_precise_errors_are_kept_as_a_tuple():
    assert External(safe_errors=[Refused, KeyError]).safe_errors == (Refused, KeyError)
    assert External(safe_errors=(error for error in [Refused])).safe_errors == (Refused,)


@pytest.mark.parametrize("error", [Exception, OSError, IOError, ConnectionError, TimeoutError])
def test_errors_that_also_follow_a_sent_request_are_too_wide(error):
    with pytest.raises(ConfigurationError, match="too wide"):
        External(safe_errors=[error])


@pytest.mark.parametrize(
    "errors", [[BaseException], [KeyboardInterrupt], [Refused()], ["Refused"], "Refused", [None]]
)
def test_what_is_no_exception_class_is_refused(errors):
    with pytest.raises(ConfigurationError, match="safe_errors"):
        External(safe_errors=errors)


@pytest.mark.parametrize("errors", [Refused, None, 7])
def test_one_class_in_place_of_a_list_is_refused_like_any_other_mistake(errors):
    with pytest.raises(ConfigurationError, match="safe_errors"):
        External(safe_errors=errors)


def test_effects_can_be_compared_and_do_not_change():
    assert External(safe_errors=[Refused]) == External(safe_errors=(Refused,))
    with pytest.raises(AttributeError):
        External().in_doubt = "retry"  # type: ignore[misc]
