"""The books of the demo's bank: the tables, the callable that posts a statement, and the audit.

Nothing here protects against a second posting, on purpose: no unique constraint on a transaction, no
question whether the statement is there already, and balances that add up whatever arrives. If a statement
is ever posted twice, in part, or not at all, :func:`audit_books` sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    DateTime,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    TypeDecorator,
    create_engine,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import DropTable

from demo.statements import check_statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sqlalchemy import Connection, Dialect, Engine, Insert
    from sqlalchemy.types import TypeEngine

    from demo.statements import Statement

__all__ = ["BooksAudit", "audit_books", "balance", "create_books", "post_statement", "statement_posting"]

_SCALE = 3  # Some currencies have three decimals (BHD, KWD, TND); none that banks book has more.
_EXAMPLES = 5


class Money(TypeDecorator[Decimal]):
    """An exact amount: ``NUMERIC(18, 3)``, on SQLite an integer number of thousandths.

    SQLite would keep a NUMERIC as a binary float, and its sums would be off by fractions of a cent.
    """

    impl = Numeric(18, _SCALE)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the column type."""
        return dialect.type_descriptor(BigInteger() if dialect.name == "sqlite" else Numeric(18, _SCALE))

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> Decimal | int | None:
        """Refuse what the column would round."""
        if value is None:
            return None
        thousandths = value.scaleb(_SCALE)
        if thousandths != thousandths.to_integral_value():
            message = f"amount {value:f} has more than {_SCALE} decimals, and money is never rounded here"
            raise ValueError(message)
        return int(thousandths) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        """Give back the amount that was stored."""
        if value is None or dialect.name != "sqlite":
            return value  # type: ignore[no-any-return]
        return Decimal(value).scaleb(-_SCALE)


_metadata = MetaData()

#: One row per transaction. The key of the business, (statement_no, reference), is indexed but not unique.
statement_posting = Table(
    "statement_posting",
    _metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("statement_no", String(80), nullable=False),
    Column("reference", String(90), nullable=False),
    Column("business_date", Date, nullable=False),
    Column("account", String(35), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount", Money, nullable=False),
    Column("posted_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("ix_statement_posting_reference", "statement_no", "reference"),
)

#: The balance of an account at the end of a business date, and how many transactions led to it.
balance = Table(
    "balance",
    _metadata,
    Column("account", String(35), primary_key=True),
    Column("business_date", Date, primary_key=True),
    Column("currency", String(3), nullable=False),
    Column("closing", Money, nullable=False),
    Column("transactions", Integer, nullable=False),
)

_delivered = Table(
    "statement_line",
    MetaData(),
    Column("statement_no", String, primary_key=True),
    Column("reference", String, primary_key=True),
    Column("business_date", Date, nullable=False),
    Column("account", String, nullable=False),
    Column("currency", String, nullable=False),
    Column("amount", String, nullable=False),  # SQLite has no decimals
)
RECONCILIATION_DAG = "month_reconciliation"
"""Compares the bank's lines with the postings."""


def create_books(engine: Engine) -> None:
    """Create the tables where they do not exist.

    :param engine: the business database (PostgreSQL, MariaDB or SQLite).
    """
    _metadata.create_all(engine)


def deliver_lines(path: Path, statements: Iterable[Statement]) -> None:
    """Write the bank's lines, as they were delivered, into a database file of their own."""
    engine = create_engine(f"sqlite:///{path}")
    rows = [
        {
            "statement_no": statement["statement_no"],
            "reference": line["reference"],
            "business_date": date.fromisoformat(statement["business_date"]),
            "account": statement["account"],
            "currency": statement["currency"],
            "amount": line["amount"],
        }
        for statement in statements
        for line in statement["lines"]
    ]
    with engine.begin() as connection:
        _delivered.create(connection)
        connection.execute(insert(_delivered), rows)
    engine.dispose()


def post_statement(payload: Mapping[str, Any], connection: Connection) -> dict[str, Any]:
    """Post one statement: its transactions first, the balance last. The caller owns the transaction.

    :param payload: the statement, as :class:`demo.statements.Statement`.
    :param connection: where to post; neither committed nor rolled back here.
    :raises StatementUnbalanced: opening + transactions is not closing; a retry does not help.
    """
    check_statement(payload["statement_no"], payload)
    business_date = date.fromisoformat(payload["business_date"])
    amounts = [Decimal(line["amount"]) for line in payload["lines"]]
    if amounts:
        rows = [
            {
                "statement_no": payload["statement_no"],
                "reference": line["reference"],
                "business_date": business_date,
                "account": payload["account"],
                "currency": payload["currency"],
                "amount": amount,
            }
            for line, amount in zip(payload["lines"], amounts, strict=True)
        ]
        connection.execute(insert(statement_posting), rows)
    total = sum(amounts, Decimal(0))
    row = {
        "account": payload["account"],
        "business_date": business_date,
        "currency": payload["currency"],
        "closing": Decimal(payload["opening"]) + total,
        "transactions": len(amounts),
    }
    connection.execute(_add_to_balance(connection.dialect.name, row, total))
    closing = connection.execute(
        select(balance.c.closing).where(
            balance.c.account == payload["account"], balance.c.business_date == business_date
        )
    ).scalar_one()
    # As the bank writes it, with the currency's decimals; the column has three for every currency.
    same = closing == Decimal(payload["closing"])
    return {"lines": len(amounts), "closing": payload["closing"] if same else f"{closing:f}"}


def _add_to_balance(dialect: str, row: dict[str, Any], total: Decimal) -> Insert:
    """Insert the day's balance, or add to it: two postings at one moment both count, neither fails."""
    added: dict[str, Any] = {
        "closing": balance.c.closing + total,
        "transactions": balance.c.transactions + row["transactions"],
    }
    if dialect == "postgresql":
        key = [balance.c.account, balance.c.business_date]
        return postgresql.insert(balance).values(row).on_conflict_do_update(index_elements=key, set_=added)
    if dialect == "sqlite":
        key = [balance.c.account, balance.c.business_date]
        return sqlite.insert(balance).values(row).on_conflict_do_update(index_elements=key, set_=added)
    return mysql.insert(balance).values(row).on_duplicate_key_update(added)


@dataclass(frozen=True, slots=True)
class BooksAudit:
    """What the books hold, beside what the statements say.

    :param statements: statements that were given.
    :param expected: transactions in them.
    :param posted: transactions in the books.
    :param duplicated: postings beyond the first of a transaction.
    :param lost: transactions without a posting.
    :param unexpected: postings that no statement has.
    :param altered: postings whose amount, currency, account or date differs from the statement's.
    :param wrong_balances: closing balances that are missing, not of any statement, differ from the
        statement's, or are not what opening balance and postings add up to.
    :param examples: the first few findings of each kind, for people.
    """

    statements: int
    expected: int
    posted: int
    duplicated: int
    lost: int
    unexpected: int
    altered: int
    wrong_balances: int
    examples: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether every transaction is posted once, as it is, and every closing balance is right."""
        return not (self.duplicated or self.lost or self.unexpected or self.altered or self.wrong_balances)


# The statements as tables of the audit's own connection, so that the counting is plain SQL.
_expectation = MetaData()
_line = Table(
    "audit_line",
    _expectation,
    Column("statement_no", String(80), primary_key=True),
    Column("reference", String(90), primary_key=True),
    Column("business_date", Date, nullable=False),
    Column("account", String(35), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount", Money, nullable=False),
    prefixes=["TEMPORARY"],
)
_statement = Table(
    "audit_statement",
    _expectation,
    Column("statement_no", String(80), primary_key=True),
    Column("business_date", Date, nullable=False),
    Column("account", String(35), nullable=False),
    Column("opening", Money, nullable=False),
    Column("closing", Money, nullable=False),
    prefixes=["TEMPORARY"],
)

#: Each gives one row per finding: where, what, and how often.
_FINDINGS = {
    "duplicated": """
        SELECT statement_no AS place, reference AS what, COUNT(*) - 1 AS times
        FROM statement_posting GROUP BY statement_no, reference HAVING COUNT(*) > 1""",
    "lost": """
        SELECT e.statement_no AS place, e.reference AS what, 1 AS times FROM audit_line e
        WHERE NOT EXISTS (SELECT 1 FROM statement_posting p
                          WHERE p.statement_no = e.statement_no AND p.reference = e.reference)""",
    "unexpected": """
        SELECT p.statement_no AS place, p.reference AS what, 1 AS times FROM statement_posting p
        WHERE NOT EXISTS (SELECT 1 FROM audit_line e
                          WHERE e.statement_no = p.statement_no AND e.reference = p.reference)""",
    "altered": """
        SELECT p.statement_no AS place, p.reference AS what, 1 AS times FROM statement_posting p
        JOIN audit_line e ON e.statement_no = p.statement_no AND e.reference = p.reference
        WHERE p.amount <> e.amount OR p.currency <> e.currency
           OR p.account <> e.account OR p.business_date <> e.business_date""",
    "balance differs": """
        SELECT s.statement_no AS place, 'closing' AS what, 1 AS times FROM audit_statement s
        LEFT JOIN balance b ON b.account = s.account AND b.business_date = s.business_date
        WHERE b.closing IS NULL OR b.closing <> s.closing
           OR s.opening + (SELECT COALESCE(SUM(p.amount), 0) FROM statement_posting p
                           WHERE p.statement_no = s.statement_no) <> s.closing""",
    "balance of no statement": """
        SELECT b.account AS place, b.business_date AS what, 1 AS times FROM balance b
        WHERE NOT EXISTS (SELECT 1 FROM audit_statement s
                          WHERE s.account = b.account AND s.business_date = b.business_date)""",
}


def audit_books(engine: Engine, statements: Iterable[Mapping[str, Any]]) -> BooksAudit:
    """Compare the books with the statements that should be in them, in one snapshot, by counting in SQL.

    :param engine: the business database.
    :param statements: every statement that should have been posted, each once.
    """
    # The default of PostgreSQL would give every query a snapshot of its own.
    level = "SERIALIZABLE" if engine.dialect.name == "sqlite" else "REPEATABLE READ"
    with engine.connect().execution_options(isolation_level=level) as connection:
        try:
            given, expected = _expect(connection, statements)
            counted: dict[str, int] = {}
            examples: list[str] = []
            for finding, query in _FINDINGS.items():
                rows = connection.execute(text(query)).all()
                counted[finding] = sum(int(row.times) for row in rows)
                examples.extend(f"{finding}: {row.place} {row.what}" for row in rows[:_EXAMPLES])
            posted = connection.execute(text("SELECT COUNT(*) FROM statement_posting")).scalar_one()
        finally:
            connection.rollback()
            for table in (_line, _statement):
                connection.execute(DropTable(table, if_exists=True))
            connection.commit()
    differs, foreign = counted.pop("balance differs"), counted.pop("balance of no statement")
    return BooksAudit(
        statements=given,
        expected=expected,
        posted=posted,
        wrong_balances=differs + foreign,
        examples=tuple(examples),
        **counted,
    )


def _expect(connection: Connection, statements: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    _expectation.create_all(connection, checkfirst=False)
    given = expected = 0
    for statement in statements:
        place = {
            "statement_no": statement["statement_no"],
            "business_date": date.fromisoformat(statement["business_date"]),
            "account": statement["account"],
        }
        balances = {name: Decimal(statement[name]) for name in ("opening", "closing")}
        connection.execute(insert(_statement), {**place, **balances})
        lines = [
            {
                **place,
                "reference": line["reference"],
                "currency": statement["currency"],
                "amount": Decimal(line["amount"]),
            }
            for line in statement["lines"]
        ]
        if lines:
            connection.execute(insert(_line), lines)
        given += 1
        expected += len(lines)
    return given, expected
