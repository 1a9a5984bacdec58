"""Fingerprints: the same content again, or changed since, and in which fields."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from decimal import Decimal
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_guard.core.errors import DocumentError
from airflow_guard.core.fingerprints import MAX_NAMED_FIELDS, changed_fields, fingerprint

STATEMENT = {
    "statement_no": "S-1",
    "amount": "10.00",
    "currency": "EUR",
    "lines": [{"text": "a", "amount": 1}],
}

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.decimals(allow_nan=False, allow_infinity=False)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
PAYLOADS = st.dictionaries(st.text(max_size=6), VALUES, max_size=6)


def changed(before: dict, after: dict, **options) -> list[str] | None:
    return changed_fields(fingerprint(before, **options), fingerprint(after, **options))


# -- the same ----------------------------------------------------------------------------------------------


def test_the_same_content_is_not_changed_whatever_the_order_of_its_fields():
    assert changed(STATEMENT, dict(reversed(STATEMENT.items()))) is None
    assert changed({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}) is None


@given(PAYLOADS)
def test_a_copy_is_never_changed(payload):
    assert changed(payload, dict(payload)) is None


def test_a_tuple_is_the_list_that_it_becomes_in_xcom():
    assert changed({"lines": (1, 2)}, {"lines": [1, 2]}) is None


def test_a_set_is_the_same_in_every_process():
    """The order of a set of texts differs between processes."""
    code = (
        "from airflow_guard.core.fingerprints import fingerprint;"
        "print(fingerprint({'tags': {'a', 'b', 'c', 'd'}, 'deep': [{'x', 'y', 'z'}]}))"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(prints) == 1


def test_a_fingerprint_never_changes_between_releases():
    """It is stored for years: another text for the same content makes all history look changed."""
    assert fingerprint({"id": "S-1", "amount": Decimal("10.00"), "day": date(2025, 3, 31), "n": 3}) == (
        "950da9486ef0255eee4fbf9d8edffa46 070686cf277b1ea2e04f132ef4ae68ea amount day id n"
    )


# -- changed -----------------------------------------------------------------------------------------------


def test_changed_fields_are_named():
    assert changed(STATEMENT, STATEMENT | {"amount": "10.01"}) == ["amount"]
    assert changed(STATEMENT, STATEMENT | {"amount": "9.99", "currency": "USD"}) == ["amount", "currency"]


def test_added_and_removed_fields_are_named():
    assert changed({"a": 1}, {"a": 1, "b": 2}) == ["b"]
    assert changed({"a": 1, "b": 2}, {"a": 1}) == ["b"]


def test_a_change_deep_inside_names_the_field_that_holds_it():
    assert changed(STATEMENT, STATEMENT | {"lines": [{"text": "a", "amount": 2}]}) == ["lines"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, "1"), (1, 1.0), (1, True), (0, False), (0, None), ("", None), ("None", None), (0.0, -0.0),
        (Decimal("1.0"), Decimal("1.00")), (Decimal(1), 1), ("é", "e\u0301"), ([], {}), ([1], ["1"]), ([1], [1.0]),
        ([None], ["None"]), ({"a": None}, {}), (date(2025, 3, 31), "2025-03-31"), (b"x", "x"), ("a", "a "),
    ],
)  # fmt: skip
def test_values_that_are_sent_differently_are_different(before, after):
    assert changed({"value": before}, {"value": after}) == ["value"]


def test_neighbouring_values_do_not_run_into_each_other():
    assert changed({"a": "x", "b": "yz"}, {"a": "xy", "b": "z"}) == ["a", "b"]
    assert changed({"a": "1:s", "b": ""}, {"a": "1", "b": ":s"}) == ["a", "b"]


def test_names_that_imitate_the_stored_form_are_read_back():
    awkward = {"a=b": 1, "c d": 2, "%41": 3, "é🧾": 4, "": 5, "\n": 6}
    for name in awkward:
        assert changed(awkward, awkward | {name: 0}) == [name]


@given(PAYLOADS, PAYLOADS)
def test_different_fields_are_always_named(before, after):
    differing = sorted(
        name for name in before.keys() | after.keys()
        if (name in before) != (name in after) or repr(before[name]) != repr(after[name])
    )  # fmt: skip
    found = changed(before, after)
    assert set(found or ()) <= set(differing)
    if before.keys() != after.keys():
        assert found is not None


# -- fields that decide ------------------------------------------------------------------------------------


def test_only_the_chosen_fields_decide():
    fields = ["amount", "currency"]
    assert changed(STATEMENT, STATEMENT | {"lines": []}, fields=fields) is None
    assert changed(STATEMENT, STATEMENT | {"currency": "USD"}, fields=fields) == ["currency"]


def test_the_order_of_the_chosen_fields_decides_nothing():
    """Tidying up a DAG file must not make all history look changed."""
    first = fingerprint(STATEMENT, ["currency", "amount"])
    assert changed_fields(first, fingerprint(STATEMENT, ["amount", "currency"])) is None
    assert changed_fields(first, fingerprint(STATEMENT, ["amount", "currency", "amount"])) is None


def test_a_chosen_field_that_is_missing_is_refused_by_name():
    with pytest.raises(DocumentError, match="value_date"):
        fingerprint(STATEMENT, ["amount", "value_date"])


# -- limits ------------------------------------------------------------------------------------------------


def test_with_very_many_fields_a_change_is_found_but_not_named():
    wide = {f"field_{number}": number for number in range(MAX_NAMED_FIELDS + 1)}
    assert changed(wide, dict(wide)) is None
    assert changed(wide, wide | {"field_7": 0}) == []
    assert len(fingerprint(wide)) == 32


@pytest.mark.parametrize(
    ("stored", "current"), [(None, "x" * 32), ("x" * 32, None), (None, None), ("", "x" * 32)]
)
def test_where_there_is_nothing_to_compare_with_nothing_has_changed(stored, current):
    assert changed_fields(stored, current) is None


class Currency(StrEnum):
    EUR = "EUR"


def circular() -> dict:
    payload: dict = {}
    payload["self"] = [payload]
    return payload


@pytest.mark.parametrize(
    "payload",
    [{1: "a", "b": 2}, {"a": {(1, 2): 3}}, {"a": {1: 2, "x": 3}}, circular(), {"a\ud800": 1}],
    ids=["names-of-two-types", "tuple-as-name", "inner-names-of-two-types", "circular", "surrogate"],
)
def test_content_without_a_canonical_form_is_refused_like_any_other_bad_document(payload):
    """One poison document must not take the others of its batch with it."""
    with pytest.raises(DocumentError):
        fingerprint(payload)


def test_odd_values_are_taken_as_they_print():
    assert changed({"a": Currency.EUR}, {"a": Currency.EUR}) is None
    assert changed({"a": "\ud800"}, {"a": "\ud801"}) == ["a"]
    assert changed({"a": float("nan")}, {"a": float("nan")}) is None
    assert changed({"a": [Decimal("1.0")]}, {"a": [Decimal("1.00")]}) == ["a"]
