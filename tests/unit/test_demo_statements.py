"""The demo's statements: what is written is MT940 and adds up, and what is read is what was written."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from airflow_guard.core.errors import GuardError
from demo.statements import (
    ACCOUNTS,
    Statement,
    StatementsMissing,
    StatementUnbalanced,
    StatementUnreadable,
    WrittenMonth,
    parse_statement_file,
    read_statements,
    write_month,
)

if TYPE_CHECKING:
    from pathlib import Path

JANUARY_5 = date(2026, 1, 5)

# SWIFT character set X, as in the FIN standard: no braces, no underscore, no at sign, no umlaut.
CHARACTER_SET_X = re.compile(r"[A-Za-z0-9/\-?:().,'+ ]*")
FIELDS = {
    "20": r"[^/].{0,15}",
    "25": r".{1,35}",
    "28C": r"\d{5}/\d{1,5}",
    "60F": r"[CD]\d{6}[A-Z]{3}(?=.{1,15}$)\d+,\d*",
    "61": r"\d{6}\d{4}(C|D|RC|RD)(?=[\d,]{1,15}N)\d+,\d*N[A-Z]{3}(?!.{17,}//).{1,16}//.{1,16}",
    "86": r".{1,61}",
    "62F": r"[CD]\d{6}[A-Z]{3}(?=.{1,15}$)\d+,\d*",
}


@pytest.fixture(scope="module")
def january(tmp_path_factory: pytest.TempPathFactory) -> WrittenMonth:
    return write_month(tmp_path_factory.mktemp("statements"))


@pytest.fixture(scope="module")
def read(january: WrittenMonth) -> list[Statement]:
    folder = january.files[0].parent
    return [s for day in january.business_dates for s in read_statements(folder, day)]


def by_account(statements: list[Statement]) -> dict[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    for statement in statements:
        found.setdefault(statement["account"], []).append(statement)
    return found


def rewritten(january: WrittenMonth, folder: Path, old: str, new: str) -> Path:
    """Copy one bank's file of 5 January with its first `old` replaced by `new`."""
    source = next(file for file in january.files if file.name == "DEMOCHZ0_2026-01-05.sta")
    content = source.read_bytes().decode("ascii")
    assert old in content
    target = folder / source.name
    target.write_bytes(content.replace(old, new, 1).encode("utf-8"))
    return target


def test_a_month_has_every_calendar_day_and_a_few_hundred_transactions_a_day(
    january: WrittenMonth, read: list[Statement]
) -> None:
    assert len(january.business_dates) == 31
    per_day = dict.fromkeys(january.business_dates, 0)
    for statement in read:
        per_day[date.fromisoformat(statement["business_date"])] += len(statement["lines"])
    assert all(200 <= count <= 500 for count in per_day.values())
    assert len(read) == january.statements == 31 * len(ACCOUNTS)
    assert sum(per_day.values()) == january.transactions
    assert len({account.currency for account in ACCOUNTS}) >= 4


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    once, again, other = (
        write_month(tmp_path / name, seed=seed) for name, seed in (("a", 7), ("b", 7), ("c", 8))
    )
    for first, second, different in zip(once.files, again.files, other.files, strict=True):
        assert first.read_bytes() == second.read_bytes() != different.read_bytes()
    assert once.closing == again.closing != other.closing


def test_every_line_is_a_swift_field(january: WrittenMonth) -> None:
    for file in january.files:
        content = file.read_bytes().decode("ascii")
        assert content.count("\r\n") == content.count("\n")
        for line in content.split("\r\n"):
            if not line or line.startswith("{1:") or line == "-}":
                continue
            assert CHARACTER_SET_X.fullmatch(line)
            assert len(line) <= 65
            assert not line.startswith("-")
            field = re.match(r":(\d\d[A-Z]?):(.*)", line)
            assert bool(field) == line.startswith(":")
            if field:
                assert re.fullmatch(FIELDS[field[1]], field[2]), line


def test_each_message_has_its_fields_in_the_order_of_the_standard(january: WrittenMonth) -> None:
    for file in january.files:
        messages = file.read_text("ascii").split("-}\n")
        assert messages.pop() == ""
        for message in messages:
            tags = re.findall(r"^:(\d\d[A-Z]?):", message, re.MULTILINE)
            assert re.fullmatch(r"20 25 28C 60F (61 86 )*62F", " ".join(tags))


def test_opening_plus_transactions_is_closing_and_the_next_opening(
    january: WrittenMonth, read: list[Statement]
) -> None:
    for account, statements in by_account(read).items():
        assert [s["business_date"] for s in statements] == [d.isoformat() for d in january.business_dates]
        for statement in statements:
            total = sum(Decimal(line["amount"]) for line in statement["lines"])
            assert Decimal(statement["opening"]) + total == Decimal(statement["closing"])
        assert all(before["closing"] == after["opening"] for before, after in pairwise(statements))
        # The writer counts in integers and never sees the reader's decimals.
        assert Decimal(statements[-1]["closing"]) == january.closing[account]


def test_every_amount_has_exactly_the_decimals_of_its_currency(read: list[Statement]) -> None:
    decimals = {account.account: account.decimals for account in ACCOUNTS}
    assert set(decimals.values()) == {0, 2, 3}
    for statement in read:
        amounts = [line["amount"] for line in statement["lines"]]
        for amount in (statement["opening"], statement["closing"], *amounts):
            assert re.fullmatch(r"-?\d+(\.\d+)?", amount)
            assert len(amount.partition(".")[2]) == decimals[statement["account"]]


def test_statement_numbers_and_references_are_unique_in_the_month(read: list[Statement]) -> None:
    numbers = [statement["statement_no"] for statement in read]
    assert len(set(numbers)) == len(numbers)
    assert "DE70999900000000001001/2026-01-05/005" in numbers
    references = [line["reference"] for statement in read for line in statement["lines"]]
    assert len(set(references)) == len(references)


def test_the_month_holds_what_makes_posting_difficult(january: WrittenMonth, read: list[Statement]) -> None:
    content = "".join(file.read_text("ascii") for file in january.files)
    for mark in ("C", "D", "RC", "RD"):
        assert re.search(rf"^:61:\d{{10}}{mark}\d", content, re.MULTILINE), mark
    assert "NONREF" in content
    assert any(statement["opening"].startswith("-") for statement in read), "an overdrawn account"
    assert any(not statement["lines"] for statement in read), "a day without a transaction"
    for statement in read:
        if len(statement["lines"]) >= 5:
            same = {line["amount"] for line in statement["lines"][:5]}
            assert len(same) == 1, "equal amounts, told apart by the reference alone"


def test_a_credit_taken_back_lowers_the_balance(january: WrittenMonth, read: list[Statement]) -> None:
    amounts = {line["reference"]: Decimal(line["amount"]) for s in read for line in s["lines"]}
    booked = re.compile(r"^:61:\d{10}([RCD]+)[\d,]+N.*//(\w+)$", re.MULTILINE)
    signs: dict[str, set[bool]] = {}
    for file in january.files:
        for mark, reference in booked.findall(file.read_text("ascii")):
            signs.setdefault(mark, set()).add(amounts[reference] > 0)
    assert signs == {"C": {True}, "RD": {True}, "D": {False}, "RC": {False}}


def test_a_value_date_of_another_day_month_or_year_does_not_move_the_entry(
    january: WrittenMonth, read: list[Statement]
) -> None:
    content = "".join(file.read_text("ascii") for file in january.files)
    assert re.search(r"^:61:2512310101", content, re.MULTILINE), "last year's value date"
    assert re.search(r"^:61:2602010131", content, re.MULTILINE), "next month's value date"
    for statement in read:
        assert {line["entry_date"] for line in statement["lines"]} <= {statement["business_date"]}


def test_a_statement_survives_json_unchanged(read: list[Statement]) -> None:
    assert json.loads(json.dumps(read)) == read


def test_the_text_is_what_the_bank_wrote_over_several_lines(january: WrittenMonth) -> None:
    folder = january.files[0].parent
    lines = [line for s in read_statements(folder, JANUARY_5) for line in s["lines"]]
    shape = r"(INCOMING|OUTGOING|DIRECT|CREDIT|DEBIT) .* INV-\d{5}/2026, ORDER \d+|CHARGES"
    assert all(re.fullmatch(shape, line["text"]) for line in lines)
    assert max(len(line["text"]) for line in lines) > 65


def test_other_months_have_their_own_length(tmp_path: Path) -> None:
    written = write_month(tmp_path, year=2028, month=2, accounts=ACCOUNTS[:1])
    assert written.business_dates[-1] == date(2028, 2, 29)
    (last,) = read_statements(tmp_path, date(2028, 2, 29))
    assert last["statement_no"].endswith("/2028-02-29/060")


def test_a_day_without_files_is_an_error_not_an_empty_day(january: WrittenMonth) -> None:
    folder = january.files[0].parent
    with pytest.raises(StatementsMissing, match="2026-02-01") as caught:
        list(read_statements(folder, date(2026, 2, 1)))
    assert str(folder) in str(caught.value)
    assert caught.value.retryable


def test_a_statement_that_does_not_balance_names_file_statement_and_figures(
    january: WrittenMonth, tmp_path: Path
) -> None:
    source = next(file for file in january.files if file.name == "DEMOCHZ0_2026-01-05.sta")
    opening = re.search(r":60F:(\w+CHF)(\d+),(\d\d)", source.read_text("ascii"))
    assert opening
    (before,) = parse_statement_file(source)
    one_more = f":60F:{opening[1]}{int(opening[2]) + 1},{opening[3]}"
    broken = rewritten(january, tmp_path, opening[0], one_more)
    with pytest.raises(StatementUnbalanced) as caught:
        parse_statement_file(broken)
    message = str(caught.value)
    for part in (str(broken), before["statement_no"], before["closing"], "difference -1.00"):
        assert part in message
    assert isinstance(caught.value, GuardError)
    assert not caught.value.retryable


def test_one_bad_file_stops_the_whole_day_before_its_first_statement(
    january: WrittenMonth, tmp_path: Path
) -> None:
    for file in january.files:
        if "2026-01-05" in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes().replace(b":62F:C", b":62F:D"))
    with pytest.raises(StatementUnbalanced, match=last.name):
        next(read_statements(tmp_path, JANUARY_5))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (":62F:", ":62M:", ":62F: (a statement split into pages is not supported) is missing"),
        (":25:", ":26:", ":25: is missing"),
        (":28C:", ":29C:", ":28C: is missing"),
        (":61:260105", ":61:261305", "month must be in 1..12"),
        (":60F:C260104CHF", ":60F:C260104EUR", "opens in EUR and closes in CHF"),
        ("TRANSFER", "TRÄNSFER", "ascii"),
        (":20:", ":2O:", "no :20: in it"),
    ],
)
def test_a_file_that_cannot_be_read_names_itself_and_the_reason(
    january: WrittenMonth, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    broken = rewritten(january, tmp_path, old, new)
    with pytest.raises(StatementUnreadable) as caught:
        parse_statement_file(broken)
    assert str(broken) in str(caught.value)
    assert reason in str(caught.value)


def test_a_line_that_lost_its_amount_is_noticed(january: WrittenMonth, tmp_path: Path) -> None:
    broken = rewritten(january, tmp_path, ":61:", ":6l:")
    with pytest.raises(StatementUnbalanced):
        parse_statement_file(broken)


def test_a_file_under_another_days_name_is_refused(january: WrittenMonth, tmp_path: Path) -> None:
    source = next(file for file in january.files if file.name == "DEMOCHZ0_2026-01-05.sta")
    (tmp_path / "DEMOCHZ0_2026-01-06.sta").write_bytes(source.read_bytes())
    with pytest.raises(StatementUnreadable, match=r"2026-01-05/005, but is named for 2026-01-06"):
        list(read_statements(tmp_path, JANUARY_5 + timedelta(days=1)))


def test_lines_without_a_bank_reference_of_their_own_are_told_apart_by_their_place(tmp_path: Path) -> None:
    file = tmp_path / "bank_2026-01-05.sta"
    file.write_text(
        ":20:ONE\n:25:12345\n:28C:5/1\n:60F:C260104EUR10,00\n"
        ":61:2601050105C1,00NMSCNONREF//SHARED\n:61:2601050105C1,00NMSCNONREF//SHARED\n"
        ":61:2601050105C1,00NMSCNONREF\n:61:2601050105D0,00NMSCNONREF//OWN\n:62F:C260105EUR13,00\n-\n"
    )
    (statement,) = read_statements(tmp_path, JANUARY_5)
    assert [line["reference"] for line in statement["lines"]] == [
        "SHARED#0001",
        "SHARED#0002",
        "12345/2026-01-05/005#0003",
        "OWN",
    ]
    assert [line["amount"] for line in statement["lines"]] == ["1.00", "1.00", "1.00", "0.00"]


def test_details_and_reversals_of_other_banks_stay_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "bank_2026-01-05.sta"
    file.write_text(
        ":20:ONE\n:25:12345\n:28C:5/1\n:60F:C260104EUR10,00\n"
        ":61:2601050105C1,00NMSCNONREF//B1\n:86:166?00GUTSCHRIFT?20RECHNUNG 4711?32MUSTERMANN\n"
        ":61:2601050105RC3,00NMSCNONREF//B2\nNO DETAILS\n:62F:C260105EUR8,00\n-\n"
    )
    (statement,) = read_statements(tmp_path, JANUARY_5)
    assert [(line["amount"], line["text"]) for line in statement["lines"]] == [
        ("1.00", "166?00GUTSCHRIFT?20RECHNUNG 4711?32MUSTERMANN"),
        ("-3.00", "NO DETAILS"),
    ]
