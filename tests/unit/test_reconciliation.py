"""Reconciliation without a database: what may be written, what counts as equal, and what is said."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from airflow_guard.core.amounts import ControlTotals, amount_of, shown, total, variance
from airflow_guard.core.errors import AmountError, ConfigurationError
from airflow_guard.reconciling.comparison import Reading, judge
from airflow_guard.reconciling.rules import Break, BreakType, Matcher, Row, Rules
from airflow_guard.reconciling.sides import Side

AT = datetime(2026, 1, 31, 12, 5, tzinfo=UTC)
LONG = "99999999999999999999999999999999999999"


# -- amounts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [0, False, "0", "0.00", "-0", Decimal(0), Decimal("-0.00"), Decimal("0E-9")])
def test_zero_is_zero_from_every_driver(zero):
    """R09, C29."""
    amount = amount_of(zero, "amount")
    assert (amount, amount.is_signed()) == (0, False)


@pytest.mark.parametrize(
    "value", ["", " ", "abc", "1,234.50", "1e5", "0x10", "1 2", "NaN", None, b"1", Decimal("NaN")]
)
def test_what_is_no_amount_is_named_with_its_column(value):
    with pytest.raises(AmountError, match="'net'"):
        amount_of(value, "net")


@pytest.mark.parametrize("value", [Decimal("Infinity"), float("inf")])
def test_infinity_is_no_amount(value):
    with pytest.raises(AmountError):
        amount_of(value, "net", inexact=True)


def test_a_float_needs_permission_and_is_then_what_it_shows():
    with pytest.raises(AmountError, match=r"float.*absolute_tolerance"):
        amount_of(0.1, "net")
    assert amount_of(0.1, "net", inexact=True) == Decimal("0.1")
    assert amount_of(sum([0.1] * 10), "net", inexact=True) == Decimal("0.9999999999999999")


def test_sums_and_variances_never_round():
    assert shown(total([Decimal(LONG), Decimal("0.01"), None])) == f"{LONG}.01"
    assert shown(variance(Decimal(LONG), Decimal("1E-30"))) == f"-{int(LONG) - 1}.{'9' * 29}9"
    assert total([]) is total([None]) is None
    assert (variance(None, None), variance(None, Decimal(1)), variance(Decimal(1), None)) == (None, 1, -1)


# -- rules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["absolute_tolerance", "relative_tolerance"])
@pytest.mark.parametrize("value", [0.01, "abc", "-1", "NaN", "Infinity", None, True])
def test_a_tolerance_is_an_exact_number(name, value):
    with pytest.raises(ConfigurationError, match=name):
        Rules(**{name: value})


@pytest.mark.parametrize(
    "given",
    [{"count_tolerance": -1}, {"count_tolerance": "1"}, {"count_tolerance": True}, {"max_breaks": 0}, {"max_breaks": 10_001},
     {"group_by": ["a", "a"]}, {"group_by": ["a b"]}, {"compare": ["a;b"]}],
)  # fmt: skip
def test_rules_that_cannot_work_are_refused(given):
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        Rules(**given)


def test_the_larger_tolerance_counts_and_the_relative_one_is_of_the_absolute_source_amount():
    rules = Rules(absolute_tolerance="0.05", relative_tolerance="0.001")
    assert rules.allowance(Decimal(-1000)) == 1
    assert rules.allowance(Decimal(10)) == Decimal("0.05")
    assert Rules().allowance(Decimal(10)) == 0
    assert (Rules().inexact, Rules(absolute_tolerance="0.00").inexact, rules.inexact) == (False, False, True)


def test_a_single_name_may_be_written_without_a_list():
    assert Rules(group_by="currency").group_by == ("currency",)


# -- sides -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{}, {"table": "a", "sql": "b"}, {"sql": " ;"}, {"sql": "x", "where": "y"}, {"table": "a", "key": []},
     {"table": "a", "amount": ["x", "x"]}, {"table": "a", "amount": ["x", "y"], "columns": {"x": "y"}},
     {"table": "a", "parameters": [1]}, {"table": "a", "conn_id": ""}],
)  # fmt: skip
def test_sides_that_cannot_work_are_refused(given):
    with pytest.raises(ConfigurationError):
        Side(**{"conn_id": "books", **given})


def test_a_template_is_checked_when_it_is_rendered():
    """C33."""
    side = Side(
        conn_id="books",
        table="{{ params.table }}",
        key=["{{ params.key }}", "b"],
        parameters={"d": "{{ ds }}"},
    )
    values = {"{{ params.table }}": "gl.postings", "{{ params.key }}": "no", "{{ ds }}": "2026-01-31"}
    rendered = side.rendered(lambda text: values.get(text, text))
    assert (rendered.table_parts(), rendered.keys, rendered.parameters["d"]) == (
        ("gl", "postings"),
        ("no", "b"),
        "2026-01-31",
    )
    with pytest.raises(ConfigurationError, match="table"):
        side.rendered(lambda text: "a; DROP TABLE b")
    with pytest.raises(ConfigurationError, match="table"):
        side.check()


def test_a_side_is_described_by_connection_and_table():
    assert Side(conn_id="books", table=["Finance", "Pay-ments"]).describe() == "books: Finance.Pay-ments"
    assert Side(conn_id="books", sql="SELECT 1").describe() == "books: sql"


# -- totals ------------------------------------------------------------------------------------------------


def totals(records, amount, missing=0, hash_total=0):
    return ControlTotals(records, (None if amount is None else Decimal(amount),), (missing,), hash_total)


def judged(source, target, breaks=None, **rules):
    source = {(): source} if isinstance(source, ControlTotals) else source
    target = {(): target} if isinstance(target, ControlTotals) else target
    readings = [Reading(name, AT, given) for name, given in (("books", source), ("bank", target))]
    return judge(Rules(**rules), *readings, amount_names=["amount"], breaks=breaks)


@pytest.mark.parametrize(
    ("source", "target", "rules", "passed"),
    [
        # C17: count and sum of (source | target)
        ({}, {}, {}, False),
        ({}, {}, {"allow_empty": True}, True),
        (totals(3, None, 3), totals(3, None, 3), {}, False),
        (totals(3, None, 3), totals(3, None, 3), {"allow_missing_amounts": True}, True),
        (totals(3, "10"), totals(3, None, 3), {"allow_missing_amounts": True}, False),
        (totals(3, "10", 1), totals(3, "10"), {"allow_missing_amounts": True}, False),
        (totals(3, "0", 0), totals(3, None, 3), {"allow_missing_amounts": True}, False),
        (totals(3, "10.00"), totals(3, "10"), {}, True),
        (totals(3, "10.00"), totals(3, "10.01"), {}, False),
        (totals(3, "10.00"), totals(3, "10.01"), {"absolute_tolerance": "0.01"}, True),
        (totals(3, "10.00"), totals(3, "10.011"), {"absolute_tolerance": "0.01"}, False),
        (totals(3, "-1000"), totals(3, "-1001"), {"relative_tolerance": "0.001"}, True),
        (totals(3, "-1000"), totals(3, "-1001.01"), {"relative_tolerance": "0.001"}, False),
        (totals(3, "0"), totals(3, "0.01"), {"relative_tolerance": "0.5"}, False),
        (totals(3, "10"), totals(4, "10"), {}, False),
        (totals(3, "10"), totals(4, "10"), {"count_tolerance": 1}, True),
        (totals(3, "10"), {}, {"count_tolerance": 2, "absolute_tolerance": "10"}, False),
        (totals(2, "10"), {}, {"count_tolerance": 2, "absolute_tolerance": "10"}, True),
        (totals(1, LONG), totals(1, LONG[:-1] + "8"), {}, False),
    ],
)
def test_which_totals_agree(source, target, rules, passed):
    assert judged(source, target, **rules).passed is passed


def test_without_keys_the_outcome_says_so():
    assert "Totals only" in judged(totals(1, "1"), totals(1, "1")).why
    assert "Totals only" not in judged(totals(1, "1"), totals(1, "1"), breaks=[]).why


def test_the_outcome_says_figures_in_full():
    why = judged(
        {("EUR",): totals(3, "10.00")},
        {("EUR",): totals(3, "9.98"), (None,): totals(1, "5")},
        group_by=["currency"],
    ).why
    assert "currency 'EUR': amount is 10.00 in the source, 9.98 in the target (variance -0.02)" in why
    assert "no currency: the source has no such group" in why


def test_missing_documents_within_the_count_tolerance_are_named_and_fail_nothing():
    gone = [
        Break(BreakType.MISSING_IN_TARGET, (str(n),), source_amount=Decimal(0), source_records=1)
        for n in range(2)
    ]
    tolerant = judged(totals(3, "1"), totals(1, "1"), breaks=gone, count_tolerance=2)
    assert (tolerant.passed, len(tolerant.breaks), tolerant.counts) == (True, 2, {})
    assert "2 breaks are within the tolerances" in tolerant.why
    strict = judged(totals(3, "1"), totals(2, "1"), breaks=gone, count_tolerance=1)
    assert (strict.passed, strict.counts) == (False, {BreakType.MISSING_IN_TARGET: 2})


def test_the_digest_of_a_difference_ignores_what_agrees():
    def digest(source, target, **rules):
        return judged(source, target, breaks=[], **rules).difference

    assert digest(totals(3, "10", 0, 77), totals(3, "10.0", 0, 77)) == ""
    first = digest(totals(3, "10", 0, 77), totals(2, "8", 0, 70))
    assert first == digest(totals(4, "15", 0, 100), totals(3, "13.00", 0, 93)) != ""
    assert first != digest(totals(3, "10", 0, 77), totals(2, "8", 0, 71))
    assert digest(totals(3, "10", 0, 77), totals(3, "10", 0, 78)) != ""


# -- documents ---------------------------------------------------------------------------------------------


def rows(*given):
    made = []
    for each in given:
        amount, *rest = each if isinstance(each, tuple) else (each,)
        group, value = [*rest, "EUR", "x"][:2] if len(rest) < 2 else rest
        made.append(Row((group,), (None if amount is None else Decimal(amount),), (value,)))
    return made


def types(source, target, **rules):
    matcher = Matcher(Rules(group_by=["currency"], compare=["memo"], **rules), ("amount",))
    found = matcher.breaks(("A",), rows(*source), rows(*target))
    return [(str(each.type), each.field, each.source_records, each.target_records) for each in found]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (["1"], ["1.00"], []),
        ([None], [None], []),
        (["1"], [], [("missing_in_target", None, 1, 0)]),
        ([], ["1"], [("missing_in_source", None, 0, 1)]),
        (["1"], ["2"], [("amount_mismatch", "amount", 1, 1)]),
        (["0"], [None], [("amount_mismatch", "amount", 1, 1)]),
        (["1", "1"], ["1"], [("duplicate_in_source", None, 2, 1)]),
        (["1"], ["1", "1"], [("duplicate_in_target", None, 1, 2)]),
        (["1", "1"], ["1", "1"], [("duplicate_in_source", None, 2, 2), ("duplicate_in_target", None, 2, 2)]),
        (["1"] * 2, ["1"] * 3, [("duplicate_in_source", None, 2, 3), ("duplicate_in_target", None, 2, 3)]),
        (["1", "1"], [], [("duplicate_in_source", None, 2, 0), ("missing_in_target", None, 2, 0)]),
        (["1"], ["1", "9"], [("duplicate_in_target", None, 1, 2)]),
        (["1"], ["8", "9"], [("duplicate_in_target", None, 1, 2), ("amount_mismatch", "amount", 1, 2)]),
        ([("1", "EUR", "x")], [("1", "EUR", None)], [("attribute_mismatch", "memo", 1, 1)]),
        ([("1", "EUR")], [("1", "USD")], [("attribute_mismatch", "currency", 1, 1)]),
        ([("1", "EUR")], [("2", None)], [("amount_mismatch", "amount", 1, 1), ("attribute_mismatch", "currency", 1, 1)]),
        ([("1", "EUR"), ("1", "USD")], [("1", "EUR"), ("1", "GBP")], [("attribute_mismatch", "currency", 1, 1)]),
        ([("1", "EUR"), ("2", "USD")], [("1", "EUR")], [("missing_in_target", None, 1, 0)]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_document(source, target, expected):
    assert types(source, target) == expected


def test_a_tolerance_covers_a_document_too():
    assert types(["100"], ["100.01"], absolute_tolerance="0.01") == []
    assert types(["100"], ["100.02"], absolute_tolerance="0.01") == [("amount_mismatch", "amount", 1, 1)]
    assert types(["-100"], ["-101"], relative_tolerance="0.01") == []
