"""The demo's books on real databases: posting adds up, and the audit sees every way in which it does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from copy import deepcopy
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, func, insert, inspect, select, text, update

from demo.books import audit_books, balance, create_books, post_statement, statement_posting
from demo.statements import StatementUnbalanced, read_statements, write_month
from demo.waiting import cpu_used, wait
from tests.databases import POSTGRES, SERVERS, databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from demo.statements import Statement
    from tests.databases import DatabaseUnderTest

ROOT = Path(__file__).resolve().parents[2]
# A weekend: short statements, and of one account two without a transaction.
DAYS = (date(2026, 1, 3), date(2026, 1, 4))


@pytest.fixture(scope="module")
def weekend(tmp_path_factory: pytest.TempPathFactory) -> list[Statement]:
    folder = tmp_path_factory.mktemp("statements")
    write_month(folder)
    return [statement for day in DAYS for statement in read_statements(folder, day)]


@pytest.fixture
def engine(database: DatabaseUnderTest) -> Iterator[Engine]:
    engine = database.engine()
    create_books(engine)
    yield engine
    engine.dispose()


def post(engine: Engine, *statements: Statement) -> list[dict[str, Any]]:
    results = []
    for statement in statements:
        with engine.begin() as connection:
            results.append(post_statement(statement, connection))
    return results


def of_currency(statements: list[Statement], currency: str) -> Statement:
    return next(s for s in statements if s["currency"] == currency and s["lines"])


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(statement_posting)).scalar_one()


def test_every_statement_posted_once_is_a_clean_audit(engine: Engine, weekend: list[Statement]) -> None:
    results = post(engine, *weekend)
    lines = sum(len(statement["lines"]) for statement in weekend)
    audit = audit_books(engine, weekend)
    assert audit.clean
    assert (audit.statements, audit.expected, audit.posted) == (len(weekend), lines, lines)
    assert (audit.duplicated, audit.lost, audit.unexpected, audit.altered, audit.wrong_balances) == (0,) * 5
    assert audit.examples == ()
    assert results == [{"lines": len(s["lines"]), "closing": s["closing"]} for s in weekend]
    assert json.loads(json.dumps(results)) == results
    assert any(result["lines"] == 0 for result in results), "a day without a transaction has a balance too"


def test_the_order_of_the_days_makes_no_difference(engine: Engine, weekend: list[Statement]) -> None:
    post(engine, *reversed(weekend))
    assert audit_books(engine, weekend).clean


def test_amounts_come_back_exactly_as_the_bank_wrote_them(engine: Engine, weekend: list[Statement]) -> None:
    statement = of_currency(weekend, "BHD")
    post(engine, statement)
    with engine.connect() as connection:
        stored = connection.execute(select(statement_posting.c.reference, statement_posting.c.amount)).all()
        total = connection.execute(select(func.sum(statement_posting.c.amount))).scalar_one()
    expected = {line["reference"]: Decimal(line["amount"]) for line in statement["lines"]}
    assert {row.reference: row.amount for row in stored} == expected
    assert total == Decimal(statement["closing"]) - Decimal(statement["opening"])


def made_up(opening: str, closing: str, *amounts: str) -> Statement:
    return {
        "statement_no": "X1/2026-01-05/005",
        "account": "X1",
        "currency": "BHD",
        "business_date": "2026-01-05",
        "opening": opening,
        "closing": closing,
        "lines": [
            {"reference": f"R{n}", "amount": amount, "entry_date": "2026-01-05", "text": ""}
            for n, amount in enumerate(amounts)
        ],
    }


def test_amounts_that_no_binary_float_holds_add_up_to_the_last_digit(engine: Engine) -> None:
    # 18 digits, and thousandths whose float sum is not 1.000.
    statement = made_up("999999999999998.999", "999999999999999.999", *["0.001"] * 10, *["0.099"] * 10)
    assert post(engine, statement) == [{"lines": 20, "closing": "999999999999999.999"}]
    assert audit_books(engine, [statement]).clean


def test_an_amount_finer_than_the_books_is_refused_and_not_rounded(engine: Engine) -> None:
    with pytest.raises(Exception, match="more than 3 decimals"):
        post(engine, made_up("0", "0.0005", "0.0005"))
    assert rows(engine) == 0


def test_a_statement_that_does_not_balance_is_not_posted(engine: Engine) -> None:
    with pytest.raises(StatementUnbalanced, match=r"X1/2026-01-05/005.*difference 0\.01"):
        post(engine, made_up("1.00", "2.01", "1.00"))
    assert rows(engine) == 0


def test_a_statement_posted_twice_is_seen_line_by_line_and_in_the_balance(
    engine: Engine, weekend: list[Statement]
) -> None:
    twice = of_currency(weekend, "CHF")
    post(engine, *weekend)
    (result,) = post(engine, twice)
    audit = audit_books(engine, weekend)
    assert audit.duplicated == len(twice["lines"])
    assert audit.posted == audit.expected + audit.duplicated
    assert (audit.lost, audit.unexpected, audit.altered, audit.wrong_balances) == (0, 0, 0, 1)
    assert not audit.clean
    assert any(example.startswith(f"duplicated: {twice['statement_no']} ") for example in audit.examples)
    assert Decimal(result["closing"]) == 2 * Decimal(twice["closing"]) - Decimal(twice["opening"])


def test_a_statement_that_was_not_posted_is_lost(engine: Engine, weekend: list[Statement]) -> None:
    missing = of_currency(weekend, "PLN")
    post(engine, *(statement for statement in weekend if statement is not missing))
    audit = audit_books(engine, weekend)
    assert (audit.lost, audit.duplicated, audit.wrong_balances) == (len(missing["lines"]), 0, 1)
    assert audit.posted == audit.expected - audit.lost
    assert not audit.clean


def test_a_statement_without_transactions_that_was_not_posted_is_missed_too(
    engine: Engine, weekend: list[Statement]
) -> None:
    empty = next(statement for statement in weekend if not statement["lines"])
    post(engine, *(statement for statement in weekend if statement is not empty))
    audit = audit_books(engine, weekend)
    assert (audit.lost, audit.wrong_balances, audit.clean) == (0, 1, False)
    assert audit.examples == (f"balance differs: {empty['statement_no']} closing",)


def test_a_statement_cut_in_half_is_seen(engine: Engine, weekend: list[Statement]) -> None:
    post(engine, *weekend)
    cut = of_currency(weekend, "JPY")
    gone = [line["reference"] for line in cut["lines"][3:]]
    with engine.begin() as connection:
        connection.execute(delete(statement_posting).where(statement_posting.c.reference.in_(gone)))
    audit = audit_books(engine, weekend)
    assert (audit.lost, audit.wrong_balances, audit.clean) == (len(gone), 1, False)


def test_two_errors_that_cancel_out_are_found_although_the_balance_is_right(
    engine: Engine, weekend: list[Statement]
) -> None:
    wrong = deepcopy(weekend)
    statement = of_currency(wrong, "EUR")
    for line, error in zip(statement["lines"], ("0.01", "-0.01"), strict=False):
        line["amount"] = str(Decimal(line["amount"]) + Decimal(error))
    post(engine, *wrong)
    audit = audit_books(engine, weekend)
    assert (audit.altered, audit.wrong_balances, audit.clean) == (2, 0, False)


def test_postings_and_balances_of_no_statement_are_seen(engine: Engine, weekend: list[Statement]) -> None:
    post(engine, *weekend, made_up("0", "3", "1", "2"))
    audit = audit_books(engine, weekend)
    assert (audit.unexpected, audit.wrong_balances, audit.lost, audit.clean) == (2, 1, 0, False)


def test_a_balance_that_somebody_changed_is_seen(engine: Engine, weekend: list[Statement]) -> None:
    post(engine, *weekend)
    account = of_currency(weekend, "USD")["account"]
    changed = (balance.c.account == account) & (balance.c.business_date == DAYS[0])
    with engine.begin() as connection:
        connection.execute(
            update(balance).where(changed).values(closing=balance.c.closing + Decimal("0.001"))
        )
    audit = audit_books(engine, weekend)
    assert (audit.wrong_balances, audit.altered, audit.clean) == (1, 0, False)


def test_a_posting_that_was_rolled_back_leaves_nothing(engine: Engine, weekend: list[Statement]) -> None:
    with engine.connect() as connection:
        post_statement(of_currency(weekend, "CHF"), connection)
        connection.rollback()
    assert rows(engine) == 0
    post(engine, *weekend)
    assert audit_books(engine, weekend).clean


def test_an_audit_can_be_repeated_and_leaves_no_table(engine: Engine, weekend: list[Statement]) -> None:
    create_books(engine)
    post(engine, *weekend)
    assert audit_books(engine, weekend) == audit_books(engine, weekend)
    assert set(inspect(engine).get_table_names()) == {"statement_posting", "balance"}


def test_the_books_have_no_constraint_that_would_stop_a_duplicate(
    engine: Engine, weekend: list[Statement]
) -> None:
    statement: dict[str, Any] = {**of_currency(weekend, "CHF")}
    row: dict[str, Any] = {"reference": "R", "business_date": DAYS[0], "amount": Decimal(1)}
    row |= {name: statement[name] for name in ("statement_no", "account", "currency")}
    with engine.begin() as connection:
        connection.execute(insert(statement_posting), [row, row])
    assert rows(engine) == 2


@databases(*SERVERS)
def test_two_postings_at_one_moment_both_go_through_and_are_both_seen(
    engine: Engine, weekend: list[Statement]
) -> None:
    statement = of_currency(weekend, "CHF")
    second = threading.Thread(target=post, args=(engine, statement))
    with engine.begin() as connection:
        post_statement(statement, connection)
        second.start()
    second.join(60)
    audit = audit_books(engine, [statement])
    assert (audit.posted, audit.duplicated) == (2 * len(statement["lines"]), len(statement["lines"]))
    assert audit.wrong_balances == 1


@databases(*POSTGRES)
def test_a_process_killed_between_lines_and_balance_leaves_nothing(
    database: DatabaseUnderTest, engine: Engine, weekend: list[Statement]
) -> None:
    statement = of_currency(weekend, "CHF")
    code = (
        "import json, sys; from sqlalchemy import create_engine; "
        "from demo.books import post_statement; "
        "engine = create_engine(sys.argv[1]); connection = engine.connect(); "
        "post_statement(json.load(sys.stdin), connection); connection.commit()"
    )
    with engine.connect() as holder, engine.connect() as watcher:
        # Readers pass this lock, and whoever writes a balance stops at it: the lines are in by then.
        holder.execute(text("LOCK TABLE balance IN SHARE MODE"))
        process = subprocess.Popen(
            [sys.executable, "-c", code, database.url], cwd=ROOT, stdin=subprocess.PIPE, text=True
        )
        assert process.stdin
        with process.stdin as pipe:
            pipe.write(json.dumps(statement))
        waiting = text("SELECT count(*) FROM pg_locks WHERE relation = 'balance'::regclass AND NOT granted")
        wait(
            lambda: process.poll() is not None or watcher.execute(waiting).scalar_one() > 0,
            "the other process to wait for the row",
            lambda: cpu_used(process.pid),
        )
        assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL
        holder.rollback()
    audit = audit_books(engine, [statement])
    assert (audit.posted, audit.lost) == (0, len(statement["lines"]))
    post(engine, statement)
    assert audit_books(engine, [statement]).clean
