"""Results: what is stored is what the first run returned, or nothing is."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_guard.core.errors import ResultError
from airflow_guard.core.results import MAX_RESULT_BYTES, decode_result, encode_result, has_result

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_a_json_value_comes_back_as_it_was(value):
    assert decode_result(encode_result(value)) == value


@given(JSON)
def test_what_is_stored_is_ascii(value):
    text = encode_result(value)
    assert text.isascii()
    assert "\x00" not in text


def test_none_is_a_result_and_a_missing_one_is_not():
    assert encode_result(None) == "null"
    assert has_result(encode_result(None))
    assert not has_result(None)
    assert decode_result("null") is decode_result(None) is None


@pytest.mark.parametrize("value", [0, 0.0, False, "", [], {}])
def test_a_result_that_counts_as_false_is_a_result(value):
    stored = encode_result(value)
    assert has_result(stored)
    assert decode_result(stored) == value
    assert type(decode_result(stored)) is type(value)


def test_the_first_run_and_a_replay_give_the_same():
    """What JSON changes is changed for the first run too: it returns the round trip."""
    value = {"lines": (1, 2), "day": StrEnum("Day", ["MON"]).MON, "n": IntEnum("N", ["ONE"]).ONE, 3: "x"}
    first = decode_result(encode_result(value))
    assert first == {"lines": [1, 2], "day": "mon", "n": 1, "3": "x"}
    assert decode_result(encode_result(first)) == first


@pytest.mark.parametrize("text", ["🧾", "\x00", "\ud800", "\u2028", "x'); DELETE FROM ledger;--", "NaN"])
def test_every_text_is_kept(text):
    assert decode_result(encode_result(text)) == text


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), [float("nan")], {"a": {"b": float("inf")}}]
)
def test_what_json_does_not_know_as_a_number_is_refused(value):
    with pytest.raises(ResultError, match="JSON"):
        encode_result(value)


@pytest.mark.parametrize(
    "value", [Decimal("10.00"), date(2025, 3, 31), b"x", {1, 2}, object(), {"a": [Decimal(1)]}, {(1, 2): 3}]
)
def test_other_types_are_refused_with_advice(value):
    with pytest.raises(ResultError, match=r"str\(amount\)"):
        encode_result(value)


def test_circular_and_bottomless_results_are_refused():
    circle: list = []
    circle.append(circle)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, deep):
        with pytest.raises(ResultError):
            encode_result(value)


def test_what_can_be_stored_can_be_read_again():
    """A result that is nested almost too deep must fail when it is written, not at every replay."""
    deep: list = []
    for depth in range(20_000):
        deep = [deep]
        if depth % 97:
            continue
        try:
            text = encode_result(deep)
        except ResultError:
            return
        decode_result(text)
    pytest.fail("nothing was too deep")


def test_the_limit_counts_bytes_of_what_is_stored():
    assert len(encode_result("x" * (MAX_RESULT_BYTES - 2))) == MAX_RESULT_BYTES
    with pytest.raises(ResultError, match=f"{MAX_RESULT_BYTES + 1} bytes"):
        encode_result("x" * (MAX_RESULT_BYTES - 1))
    assert len(encode_result("🧾")) == len(json.dumps("🧾")) == 14
    with pytest.raises(ResultError, match="14 bytes"):
        encode_result("🧾", 13)


def test_a_larger_limit_can_be_set():
    assert len(encode_result("x" * 100_000, 200_000)) == 100_002
