"""Fingerprints: the same content again, or changed since, and in which fields."""

# ruff: noqa: DTZ001 - naive datetimes are content as well

from __future__ import annotations

import re
import subprocess
import sys
from array import array
from collections import OrderedDict, UserList, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_guard.core.content import canonical, changed_fields, fields_of, fingerprint
from airflow_guard.core.errors import DocumentError

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
        "from airflow_guard.core.content import fingerprint;"
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
    payload = {"id": "S-1", "amount": Decimal("10.00"), "day": date(2025, 3, 31), "n": 3}
    assert fingerprint(payload) == (
        "3419a8fa9712065e7870977aad0f0467 all e7669d60338b8dd080f383b384ea2be2f1a961176b599f76f7240c7e57b35bb2 "
        "amount day id n"
    )
    assert fingerprint(payload, ["amount"]).split(" ", 1)[1] == "some e7669d60338b8dd0 amount"


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
        (1, "1"), (1, True), (0, False), (0, None), ("", None), ("None", None), (False, None), ("1.00", Decimal("1.00")),
        (0.1, Decimal("0.1000001")), (float("nan"), None), (float("nan"), "nan"), (float("inf"), float("-inf")), (1, 10),
        (10**30, 10**30 + 1), (1e23, 10**23 + 1), ("é", "e\u0301"), ([], {}), ([], set()), ([1], ["1"]), ([None], ["None"]),
        ([1, [2]], [[1], 2]), ({"a": None}, {}), ({1: "a"}, {"1": "a"}), ({"a": "b"}, {"b": "a"}), ({"a": {}}, {"a": []}),
        (date(2025, 3, 31), "2025-03-31"), (date(2025, 3, 31), datetime(2025, 3, 31)),
        (datetime(2025, 3, 31), datetime(2025, 3, 31, tzinfo=UTC)), (time(1), time(1, tzinfo=UTC)), (time(1), "01:00:00"),
        (b"x", "x"), (b"", None), ("a", "a "), (UUID(int=1), str(UUID(int=1))), (UUID(int=1), UUID(int=1).bytes),
        (timedelta(1), 86400), ({"a"}, ["a"]), ((1, 2), (2, 1)),
    ],
)  # fmt: skip
def test_values_that_are_different_content_are_different(before, after):
    assert changed({"value": before}, {"value": after}) == ["value"]
    assert changed({"value": [{"deep": before}]}, {"value": [{"deep": after}]}) == ["value"]


class Pair(NamedTuple):
    a: int
    b: int


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 1.0), (1, Decimal("1.0")), (Decimal("1.0"), Decimal("1.00")), (100, Decimal("1E+2")), (100, 100.0),
        (0.0, -0.0), (0, Decimal("-0.00")), (0.1, Decimal("0.1")), (1e22, 10**22), (-12.5, Decimal("-12.500")),
        (float("nan"), Decimal("NaN")), (float("nan"), Decimal("sNaN")), (float("-inf"), Decimal("-Infinity")),
        (datetime(2025, 3, 31, 12, tzinfo=UTC), datetime(2025, 3, 31, 14, tzinfo=BERLIN)),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))),
        (datetime(2025, 3, 31, fold=1), datetime(2025, 3, 31)),
        (b"\0a", bytearray(b"\0a")), (b"\0a", memoryview(b"\0a")), (b"ca", memoryview(b"abc")[::-2]),
        ((1, (2,)), [1, [2]]), ({"a", "b"}, frozenset({"b", "a"})), ({"a": 1, "b": 2}, MappingProxyType({"b": 2, "a": 1})),
        ({"a": 1}, OrderedDict(a=1)), (Pair(1, 2), [1, 2]),
    ],
)  # fmt: skip
def test_one_content_in_two_types_is_one(before, after):
    assert changed({"value": before}, {"value": after}) is None
    assert changed({"value": [{"deep": before}]}, {"value": ({"deep": after},)}) is None


class Loud(str):
    """A text that prints otherwise than it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return "loud"

    __repr__ = __str__


class LoudInt(int):
    def __str__(self) -> str:
        return "loud"

    __repr__ = __str__


class Kind(Enum):
    CARD = "card"
    AGAIN = ("a", 1)


class TextKind(str, Enum):  # noqa: UP042 - as people write it
    CARD = "card"


class NumberKind(int, Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Kind.CARD, "card"), (Kind.AGAIN, ["a", 1]), (TextKind.CARD, "card"), (StrEnum("Kind", "card").card, "card"),
        (NumberKind.ONE, 1), (IntEnum("Number", "one").one, 1), (IntFlag("Flag", "a b").b, 2), (Loud("x"), "x"),
        (LoudInt(3), 3),
    ],
)  # fmt: skip
def test_what_prints_otherwise_counts_as_the_value_that_it_is(before, after):
    assert changed({"value": before}, {"value": after}) is None
    assert changed({"value": {"deep": [before]}}, {"value": {"deep": [after]}}) is None


# -- what has no content -----------------------------------------------------------------------------------


class Plain:
    """An object of the user's. Each has the same text."""

    def __repr__(self) -> str:
        return "plain"


@dataclass
class Row:
    amount: int = 1


@pytest.mark.parametrize(
    "value",
    [
        Plain(), Plain, Row(), object(), (n for n in "ab"), iter([1]), range(3), map(str, [1]), {"a": 1}.items(), 1j,
        Fraction(1, 2), Path("a"), array("d", [1.0]), deque([1]), UserList([1]), NotImplemented, len, ZoneInfo("UTC"),
        BytesIO(b"a"), re.compile("a"), Exception("a"),
    ],
)  # fmt: skip
def test_d01_what_has_no_canonical_form_is_refused_with_its_field_and_the_way_out(value):
    for payload, path in (
        ({"no": "S-1", "rates": value}, "rates"),
        ({"no": "S-1", "lines": [{"x": 1}, {"amount": value}]}, "lines[1].amount"),
        ({"no": "S-1", "by": {"the day": {3: (value,)}}}, "by['the day'][3][0]"),
    ):
        with pytest.raises(DocumentError) as refused:
            fingerprint(payload, identity="no")
        assert repr(path) in str(refused.value)
        assert type(value).__qualname__ in str(refused.value)
        assert "fingerprint_fields" in str(refused.value)
        assert fingerprint(payload, ["no"]), "the way out that the message names"


def test_a_key_of_a_mapping_without_a_form_is_refused():
    with pytest.raises(DocumentError, match=r"'by' holds a .*Plain"):
        fingerprint({"by": {Plain(): 1}})


def test_a_content_in_itself_and_a_number_that_cannot_be_written_are_refused():
    circle: list = [1]
    circle.append(circle)
    with pytest.raises(DocumentError, match="'lines'"):
        fingerprint({"lines": circle})
    with pytest.raises(DocumentError, match="'n'"):
        fingerprint({"n": 10**5000})


def test_neighbouring_values_do_not_run_into_each_other():
    assert changed({"a": "x", "b": "yz"}, {"a": "xy", "b": "z"}) == ["a", "b"]
    assert changed({"a": "1:s", "b": ""}, {"a": "1", "b": ":s"}) == ["a", "b"]


def test_names_that_imitate_the_stored_form_are_read_back():
    awkward = {"a=b": 1, "c d": 2, "%41": 3, "é🧾": 4, "": 5, "\n": 6}
    for name in awkward:
        assert changed(awkward, awkward | {name: 0}) == [name]


@given(PAYLOADS, PAYLOADS)
def test_the_fields_that_differ_are_named_and_no_others(before, after):
    differing = sorted(
        name for name in before.keys() | after.keys()
        if (name in before) != (name in after) or canonical(before[name]) != canonical(after[name])
    )  # fmt: skip
    assert changed(before, after) == (differing or None)


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


def test_d09_a_field_that_is_left_out_later_compares_what_both_sides_have():
    before = fingerprint({"amount": 1, "iban": "DE1", "loaded_at": "01:00"})
    fields = ["amount", "iban"]
    again = {"amount": 1, "iban": "DE1", "loaded_at": "02:00"}
    assert changed_fields(before, fingerprint(again)) == ["loaded_at"]
    assert changed_fields(before, fingerprint(again, fields)) is None
    assert changed_fields(before, fingerprint(again | {"amount": 2}, fields)) == ["amount"]


def test_d09_it_works_for_a_document_of_many_fields():
    many = {f"field_{number:03}": number for number in range(300)}
    later = many | {"field_007": "volatile"}
    rest = [name for name in many if name != "field_007"]
    assert changed(many, later) == ["field_007"]
    assert changed_fields(fingerprint(many), fingerprint(later, rest)) is None
    assert changed_fields(fingerprint(many), fingerprint(later | {"field_299": 0}, rest)) == ["field_299"]


@pytest.mark.parametrize(
    ("stored", "current", "expected"),
    [
        # A document that was compared as a whole did not have the field; it is new.
        ((["a"], None), (["a", "b"], ["a", "b"]), ["b"]),
        # Nothing is known of a field that fingerprint_fields had left out.
        ((["a", "b"], ["a"]), (["a", "b"], ["a", "b"]), None),
        ((["a", "b"], ["a"]), (["a", "b"], None), None),
        # Compared as a whole now, a field that is gone is gone.
        ((["a", "b"], ["a", "b"]), (["a"], None), ["b"]),
        # No field in common: nothing can be compared.
        ((["a", "b"], ["a"]), (["a", "b"], ["b"]), []),
        # Nothing decides, so nothing has changed.
        ((["a", "b"], ["a"]), (["a", "b"], []), None),
        ((["a", "b"], None), (["a", "b"], []), None),
    ],
)
def test_what_one_side_lacks(stored, current, expected):
    prints = [fingerprint(dict.fromkeys(names, 1), fields) for names, fields in (stored, current)]
    assert changed_fields(*prints) == expected


def test_the_fields_of_a_fingerprint_can_be_read_back():
    assert fields_of(fingerprint({"b c": 1, "a": 2, "no": 3}, identity="no")) == ["a", "b c"]
    assert fields_of(None) == []


def test_a_chosen_field_that_is_missing_is_refused_by_name():
    with pytest.raises(DocumentError, match="value_date"):
        fingerprint(STATEMENT, ["amount", "value_date"])


# -- limits ------------------------------------------------------------------------------------------------


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
    [{1: "a", "b": 2}, {None: 1}, circular(), {"a\ud800": 1}],
    ids=["number", "none", "circular", "surrogate"],
)
def test_content_without_a_canonical_form_is_refused_like_any_other_bad_document(payload):
    """One poison document must not take the others of its batch with it."""
    with pytest.raises(DocumentError):
        fingerprint(payload)


def test_odd_texts_are_told_apart():
    assert changed({"a": "\ud800"}, {"a": "\ud801"}) == ["a"]
    assert changed({Currency.EUR: 1}, {"EUR": 1}) is None
