"""Statements that real banks wrote, from the test data of the public project wolph/mt940.

They lie beside the project in `../shared/data/mt940` and are never part of it; without them these tests
are skipped and say so.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mt940
import pytest
import sqlalchemy as sa

from airflow_guard import IdempotentOperator
from demo.books import balance, create_books, post_statement, statement_posting
from demo.statements import (
    Statement,
    StatementUnbalanced,
    StatementUnreadable,
    parse_statement_file,
)
from tests.airflow_runs import start_run
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Business

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "mt940"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"not run: no statements at {FOLDER}")


@pytest.fixture(scope="module")
def asnb() -> list[Statement]:
    """A month of one account; the bank puts the payer's account where the reference should be."""
    return parse_statement_file(FOLDER / "asnb-2020-01.sta", statement_tag=mt940.tags.StatementASNB())


def test_a_month_of_one_account_is_31_daily_statements(asnb: list[Statement]) -> None:
    assert [s["statement_no"] for s in asnb] == [
        f"NL81ASNB9999999999/2020-01-{day:02d}/{day:03d}" for day in range(1, 32)
    ]
    assert {(s["account"], s["currency"]) for s in asnb} == {("NL81ASNB9999999999", "EUR")}
    assert sum(len(s["lines"]) for s in asnb) == 8
    assert sum(not s["lines"] for s in asnb) == 26, "most days have no transaction"


def test_opening_plus_transactions_is_closing_and_the_next_opening(asnb: list[Statement]) -> None:
    for statement in asnb:
        total = sum(Decimal(line["amount"]) for line in statement["lines"])
        assert Decimal(statement["opening"]) + total == Decimal(statement["closing"])
    assert all(before["closing"] == after["opening"] for before, after in pairwise(asnb))
    assert (asnb[0]["opening"], asnb[-1]["closing"]) == ("444.29", "501.23")


def test_lines_have_the_shape_of_the_demo(asnb: list[Statement]) -> None:
    assert asnb[24]["lines"] == [
        {
            "reference": "NL81ASNB9999999999/2020-01-25/025#0001",
            "amount": "-1.65",
            "entry_date": "2020-01-25",
            "text": "Kosten gebruik betaalrekening inclusief 1 betaalpas",
        }
    ]
    references = [line["reference"] for statement in asnb for line in statement["lines"]]
    assert len(set(references)) == 8, "the same payer on several lines and days"


def test_equal_amounts_are_told_apart_by_the_banks_reference() -> None:
    (statement,) = parse_statement_file(FOLDER / "mbank.sta")
    assert [(line["amount"], line["reference"]) for line in statement["lines"]] == [
        ("0.01", "MB170119012058"),
        ("0.01", "MB170119012085"),
        ("0.01", "MB170119012121"),
    ]
    assert statement["closing"] == "0.43"


def test_two_months_with_the_same_text_and_amount_are_two_statements() -> None:
    statements = parse_statement_file(FOLDER / "generic.sta")
    assert [s["statement_no"] for s in statements] == ["11111111/2011-02-01/001", "11111111/2011-03-01/002"]


def test_a_bank_reference_shared_by_two_lines_does_not_make_them_one() -> None:
    statements = parse_statement_file(FOLDER / "cmxl.sta", encoding="cp1252")
    assert [len(s["lines"]) for s in statements] == [11, 2, 3]
    assert [line["reference"] for line in statements[1]["lines"]] == ["55555#0001", "55555#0002"]


def test_a_value_date_that_does_not_exist_keeps_the_entry_date() -> None:
    (statement,) = parse_statement_file(FOLDER / "february-30.sta")
    assert statement["lines"][0]["entry_date"] == "2016-03-01"


def test_a_statement_that_does_not_balance_says_by_how_much() -> None:
    with pytest.raises(StatementUnbalanced, match=r"raiffeisen\.sta.*difference 1123264\.00"):
        parse_statement_file(FOLDER / "raiffeisen.sta", encoding="latin-1")


@pytest.mark.parametrize("name", ["invalid.sta", "cmxl.sta", "asnb-2020-01.sta"])
def test_what_is_not_swift_as_told_is_refused_by_name(name: str) -> None:
    with pytest.raises(StatementUnreadable, match=name):
        parse_statement_file(FOLDER / name)


# -- all of them, posted twice -------------------------------------------------------------------------------

READABLE: dict[str, dict[str, Any]] = {
    "asnb-2020-01.sta": {"statement_tag": mt940.tags.StatementASNB()},
    "cmxl.sta": {"encoding": "cp1252"},
    "february-30.sta": {},
    "generic.sta": {},
    "mbank.sta": {},
}
REFUSED = {"invalid.sta", "raiffeisen.sta"}
"""One is no MT940, and the amounts of the other do not lead to its closing balance."""


def all_statements() -> Iterator[Statement]:
    for name, how in READABLE.items():
        yield from parse_statement_file(FOLDER / name, **how)


def written_by_the_banks() -> tuple[dict[tuple[str, date], Decimal], Counter[str]]:
    """Closing balances by account and day, and transactions by account, by the tags alone: not by our reader."""
    closing: dict[tuple[str, date], Decimal] = {}
    transactions: Counter[str] = Counter()
    for name, how in READABLE.items():
        account = ""
        for line in (FOLDER / name).read_bytes().decode(how.get("encoding", "ascii")).splitlines():
            if found := re.match(r":25:(.+)", line):
                account = found[1].strip()
            elif line.startswith(":61:"):
                transactions[account] += 1
            elif found := re.match(r":62F:([CD])(\d{6})[A-Z]{3}([\d,]+)", line):
                amount = Decimal(found[3].replace(",", "."))
                day = datetime.strptime(found[2], "%y%m%d").replace(tzinfo=UTC).date()
                closing[account, day] = amount if found[1] == "C" else -amount
    return closing, transactions


def test_every_file_of_the_folder_is_posted_or_refused() -> None:
    assert {path.name for path in FOLDER.glob("*.sta")} == READABLE.keys() | REFUSED


@databases("sqlite", "postgres_embedded")
def test_all_statements_posted_twice_are_in_the_books_once(business: Business) -> None:
    from airflow.sdk import DAG

    create_books(business.ledger.business_engine)
    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        IdempotentOperator(
            task_id="post",
            python_callable=post_statement,
            documents=all_statements,
            document_key="statement_no",
            side_effect="database",
        )
    closing, transactions = written_by_the_banks()
    on = {"business_date": "2025-03-31"}
    assert (len(closing), transactions.total()) == (38, 30)

    first = start_run(dag, run_type="manual", conf=on).go()
    assert first.states() == {"post": "success"}
    assert first.result("post")["executed"] == 38
    for run in (start_run(dag, run_type="manual", conf=on).go(), first.clear().go()):
        assert run.states() == {"post": "success"}
        assert run.result("post")["replayed"] == 38
        assert "executed" not in run.result("post")

    with business.ledger.engine.connect() as connection:
        balances = connection.execute(sa.select(balance)).all()
        posted = connection.execute(
            sa.select(statement_posting.c.account, sa.func.count()).group_by(statement_posting.c.account)
        )
        assert {(row.account, row.business_date): row.closing for row in balances} == closing
        assert sum(row.transactions for row in balances) == 30
        assert dict(tuple(row) for row in posted) == transactions
        each = sa.select(statement_posting.c.statement_no, statement_posting.c.reference).distinct()
        assert connection.execute(sa.select(sa.func.count()).select_from(each.subquery())).scalar_one() == 30
