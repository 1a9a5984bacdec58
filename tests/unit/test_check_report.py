"""What a comparison comes to: as it is stored, and as it changed since it passed."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

from airflow_guard.core.amounts import ControlTotals, Group
from airflow_guard.core.checks import TOTALS_MISMATCH, FoundBreak
from airflow_guard.core.keys import KeySpace
from airflow_guard.reconciling.check_report import (
    changed_since,
    difference_of,
    found_breaks,
    group_text,
    totals_of,
)
from airflow_guard.reconciling.comparison import Comparison, Reading, judge
from airflow_guard.reconciling.rules import Break, BreakType, Rules

AT = datetime(2026, 1, 30, 12, 5, tzinfo=UTC)
HUGE = Decimal("12345678901234567890123456789012345678.01")


def comparison(
    source: dict[Group, ControlTotals],
    target: dict[Group, ControlTotals],
    *,
    group_by: tuple[str, ...] = (),
    breaks: list[Break] | None = None,
    **rules: object,
) -> Comparison:
    readings = [Reading(name, AT, totals) for name, totals in (("source", source), ("target", target))]
    return judge(
        Rules(group_by=group_by, **rules),  # type: ignore[arg-type]
        *readings,
        amount_names=("amount",),
        breaks=breaks,
    )


def totals(records: int, amount: Decimal | str | None, missing: int = 0) -> ControlTotals:
    return ControlTotals(records, (None if amount is None else Decimal(amount),), (missing,))


def test_totals_are_stored_exactly() -> None:
    stored = totals_of(
        comparison({("EUR",): totals(2, HUGE)}, {(None,): totals(1, None, 1)}, group_by=("currency",))
    )
    by_group = {each["group"]["currency"]: each for each in stored}
    assert by_group["EUR"]["source"] == {
        "records": 2,
        "amounts": {"amount": str(HUGE)},
        "missing": {"amount": 0},
    }
    assert by_group["EUR"]["target"] is None
    assert by_group[None]["target"] == {"records": 1, "amounts": {"amount": None}, "missing": {"amount": 1}}
    assert by_group["EUR"]["reasons"]


def test_a_document_break_keeps_its_amounts_and_a_composite_key_can_be_told_apart() -> None:
    breaks = [
        Break(BreakType.AMOUNT_MISMATCH, ("D", "1"), (), "amount", HUGE, Decimal("1.00"), None, None, 1, 1),
        Break(BreakType.ATTRIBUTE_MISMATCH, ("D",), (), "account", None, None, "a", None, 1, 1),
        Break(BreakType.AMOUNT_MISMATCH, ("tolerated",), (), "amount", tolerated=True),
    ]
    found = found_breaks(comparison({(): totals(2, "1.00")}, {(): totals(2, "1.01")}, breaks=breaks))
    assert [(each.document, each.field, each.source_value, each.target_value) for each in found] == [
        ("D", "account", "a", None),
        ('["D", "1"]', "amount", str(HUGE), "1.00"),
    ]


def test_a_group_that_fails_without_a_document_is_a_break_of_its_own() -> None:
    (found,) = found_breaks(comparison({(): totals(3, "10.00")}, {(): totals(2, None, 2)}))
    assert found.break_type == TOTALS_MISMATCH
    assert (found.source_value, found.target_value) == (
        "3 rows, amount 10.00", "2 rows, amount none (2 without)",
    )  # fmt: skip


def test_a_document_in_another_group_explains_both() -> None:
    moved = Break(
        BreakType.ATTRIBUTE_MISMATCH, ("D-1",), ("EUR",), "currency", Decimal(1), Decimal(1), "EUR", "USD", 1, 1
    )  # fmt: skip
    found = found_breaks(
        comparison(
            {("EUR",): totals(1, "1")}, {("USD",): totals(1, "1")}, group_by=("currency",), breaks=[moved]
        )
    )
    assert [each.document for each in found] == ["D-1"]


def test_r15_what_has_changed_since_it_passed_is_said_exactly() -> None:
    before = totals_of(comparison({(): totals(2, HUGE)}, {(): totals(2, HUGE)}))
    now = totals_of(
        comparison(
            {(): totals(2, HUGE)},
            {(): totals(3, "12345678901234567890123456789012345688.01")},
        )
    )
    assert changed_since(before, now) == "target +1 row, +10.00"
    assert changed_since(before, before) == ""


def test_a_group_that_has_come_or_gone_is_a_change() -> None:
    eur, usd = {("EUR",): totals(1, "1.00")}, {("USD",): totals(1, "-2.50")}
    before = totals_of(comparison(eur, eur, group_by=("currency",)))
    now = totals_of(comparison(usd, usd, group_by=("currency",)))
    assert changed_since(before, now) == (
        "currency EUR: source -1 row, -1.00, target -1 row, -1.00; "
        "currency USD: source +1 row, -2.50, target +1 row, -2.50"
    )


def test_the_difference_is_none_only_where_it_passes() -> None:
    assert difference_of(comparison({(): totals(1, "1.0")}, {(): totals(1, "1.00")})) is None
    assert difference_of(comparison({}, {}, allow_empty=True)) is None
    assert difference_of(comparison({}, {})) is not None
    one, two = (comparison({(): totals(1, "1")}, {(): totals(1, amount)}) for amount in ("2", "3"))
    assert difference_of(one) != difference_of(two)
    assert difference_of(one) == difference_of(one)


def test_no_group_is_not_an_empty_one() -> None:
    assert group_text({}) == "(all rows)"
    assert group_text({"currency": None}) == "no currency"
    assert group_text({"currency": ""}) == "currency "


def test_control_characters_do_not_reach_a_log() -> None:
    forged = FoundBreak("amount_mismatch", {}, "D\n2026-01-30 reconciled", None, "\x1b[2J", "1")
    assert forged.describe() == "amount_mismatch D\\n2026-01-30 reconciled \\x1b[2J / 1"


def test_a_break_is_the_same_whatever_its_amounts_and_another_in_another_group_or_cycle() -> None:
    space = KeySpace("statements", "reconcile", date(2026, 1, 30))
    one = FoundBreak("amount_mismatch", {"currency": "EUR"}, "D", "amount", "1", "2", "1")
    same = FoundBreak("amount_mismatch", {"currency": "EUR"}, "D", "amount", "5", "9", "4")
    others = [
        FoundBreak("amount_mismatch", {"currency": None}, "D", "amount"),
        FoundBreak("amount_mismatch", {"currency": "EUR"}, None, "amount"),
        FoundBreak("amount_mismatch", {"currency": "EUR"}, "D", "fee"),
        FoundBreak("missing_in_target", {"currency": "EUR"}, "D", "amount"),
    ]
    assert one.hash_in(space) == same.hash_in(space)
    cycle = KeySpace("statements", "reconcile", date(2026, 1, 30), "09:00")
    hashes = {one.hash_in(space), one.hash_in(cycle), *(each.hash_in(space) for each in others)}
    assert len(hashes) == 6
    assert one.describe() == "amount_mismatch amount D 1 / 2 (+1)"


def test_a_key_of_several_columns_reads_as_one() -> None:
    document = '["ACME\\u001b[2J", "2026-01"]'
    one = FoundBreak("missing_in_target", {}, document, None, "1", None)
    assert one.describe() == "missing_in_target ACME\\x1b[2J / 2026-01 1 / none"
    for as_it_is in ("[D-1]", "[", '["a", 1]', "[]", "{}"):
        assert FoundBreak("missing_in_target", {}, as_it_is).name == as_it_is
