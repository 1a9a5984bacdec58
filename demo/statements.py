"""Bank statements of one month: MT940 files written from a seed, and read back into mappings.

The files follow the SWIFT format (fields ``:20: :25: :28C: :60F: :61: :86: :62F:``, character set X,
CR LF, one message a statement, one file a bank and day). Bank, account and party names are invented; the
zero at the end of a bank code is what SWIFT gives to test addresses.

Reading goes through the public package ``mt-940``. What comes out is one JSON-able mapping a statement,
with every amount as an exact decimal string, ready to be a document of a guarded task.
"""

from __future__ import annotations

import random
import re
import textwrap
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import mt940

from airflow_guard.core.errors import GuardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "ACCOUNTS",
    "DemoAccount",
    "Statement",
    "StatementFileError",
    "StatementLine",
    "StatementUnbalanced",
    "StatementUnreadable",
    "StatementsMissing",
    "WrittenMonth",
    "check_statement",
    "parse_statement_file",
    "read_statements",
    "write_month",
]


class StatementFileError(GuardError):
    """A bank statement cannot be used. Another try helps only once the bank has delivered it anew.

    :param source: the file or statement that is wrong.
    :param reason: what is wrong with it.
    """

    def __init__(self, source: object, reason: str) -> None:
        super().__init__(f"{source}: {reason}")


class StatementUnreadable(StatementFileError):
    """The file is not MT940, or a field that a statement must have is missing or malformed."""


class StatementsMissing(StatementFileError):
    """There is no file for the business date. A day without transactions still has its statements."""

    retryable = True


class StatementUnbalanced(StatementFileError):
    """Opening balance plus transactions is not the closing balance; the message holds all figures."""


class StatementLine(TypedDict):
    """One transaction. ``amount`` is a signed decimal string, ``entry_date`` an ISO date."""

    reference: str
    amount: str
    entry_date: str
    text: str


class Statement(TypedDict):
    """One statement: an account's day. Balances are signed decimal strings, dates ISO."""

    statement_no: str
    account: str
    currency: str
    business_date: str
    opening: str
    closing: str
    lines: list[StatementLine]


# ---------------------------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class DemoAccount:
    """An account whose month is invented.

    :param bank: bank code (8 characters); accounts of one bank share a file.
    :param account: account identification, at most 35 characters.
    :param currency: ISO 4217 code.
    :param decimals: decimals of that currency.
    :param opening: balance before the first day, in minor units; negative is overdrawn.
    :param weekday: least and most transactions of a weekday.
    :param weekend: least and most transactions of a Saturday or Sunday.
    """

    bank: str
    account: str
    currency: str
    decimals: int
    opening: int
    weekday: tuple[int, int]
    weekend: tuple[int, int]


ACCOUNTS: tuple[DemoAccount, ...] = (
    DemoAccount("DEMODEF0", "DE70999900000000001001", "EUR", 2, 48_210_355, (120, 150), (100, 125)),
    DemoAccount("DEMODEF0", "DE43999900000000001002", "EUR", 2, 1_004_417, (30, 50), (0, 0)),
    DemoAccount("DEMODEF0", "DE16999900000000001003", "USD", 2, -2_950_000, (30, 50), (5, 10)),
    DemoAccount("DEMOCHZ0", "CH9699990000000002001", "CHF", 2, 7_730_045, (40, 60), (20, 30)),
    DemoAccount("DEMOPLP0", "PL72999000050000000000003001", "PLN", 2, 3_399_999, (60, 80), (50, 70)),
    # No decimals, and no IBAN.
    DemoAccount("DEMOJPJ0", "09990014001", "JPY", 0, 912_400_118, (30, 50), (10, 20)),
    # Three decimals: an amount cut to two would show.
    DemoAccount("DEMOBHB0", "BH70DEMO00000000005001", "BHD", 3, 15_600_250, (10, 20), (5, 10)),
)

#: (mark, SWIFT transaction type, wording, weight). RC takes a credit back, RD a debit.
_KINDS = (
    ("C", "NTRF", "INCOMING TRANSFER", 34),
    ("D", "NTRF", "OUTGOING TRANSFER", 26),
    ("C", "NDDT", "DIRECT DEBIT COLLECTED", 18),
    ("D", "NDDT", "DIRECT DEBIT PAID", 12),
    ("D", "NCHG", "CHARGES", 4),
    ("RC", "NRTI", "CREDIT TAKEN BACK", 3),
    ("RD", "NRTI", "DEBIT RETURNED", 3),
)
_PARTIES = (
    "ADLERSTEIN WERKZEUGE GMBH",
    "BRUECKMANN + SOEHNE KG",
    "CEDAR HARBOUR FREIGHT LTD",
    "DROGA POLNOCNA SP. Z O.O.",
    "GULF LANTERN TRADING W.L.L.",
    "HOSHINO SEIMITSU K.K.",
    "INNTALER MOLKEREI (EXPORT)",
    "LARKFIELD O'HARA PARTNERS",
)


class _Entry(NamedTuple):
    signed: int  # minor units; negative takes money off the account
    fields: list[str]  # the lines of its :61: and :86:


@dataclass(frozen=True, slots=True)
class WrittenMonth:
    """What was written, counted by the writer and not by the reader.

    :param files: the files, in order of their names.
    :param business_dates: the days of the month.
    :param statements: number of statements.
    :param transactions: number of transactions.
    :param closing: balance of each account after the last day.
    """

    files: tuple[Path, ...]
    business_dates: tuple[date, ...]
    statements: int
    transactions: int
    closing: dict[str, Decimal]


def write_month(
    folder: Path,
    *,
    year: int = 2026,
    month: int = 1,
    seed: int = 20260101,
    accounts: Sequence[DemoAccount] = ACCOUNTS,
) -> WrittenMonth:
    """Write the statements of every calendar day of one month; the same seed gives the same bytes.

    :param folder: where the files go; created if absent, files of the same name are overwritten.
    :param year: year of the month.
    :param month: 1 to 12.
    :param seed: changes every amount and text, not the accounts.
    :param accounts: whose statements to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    balances = {account.account: account.opening for account in accounts}
    days = [date(year, month, day) for day in range(1, monthrange(year, month)[1] + 1)]
    files: list[Path] = []
    transactions = 0
    for day in days:
        messages: dict[str, list[str]] = {}
        for index, account in enumerate(accounts, start=1):
            entries = _entries_of(account, index, day, random.Random(f"{seed}/{account.account}/{day}"))
            message = _message(account, index, day, balances[account.account], entries)
            messages.setdefault(account.bank, []).append(message)
            balances[account.account] += sum(entry.signed for entry in entries)
            transactions += len(entries)
        for code, texts in messages.items():
            files.append(folder / f"{code}_{day.isoformat()}.sta")
            files[-1].write_bytes("".join(texts).encode("ascii"))
    closing = {a.account: Decimal(balances[a.account]).scaleb(-a.decimals) for a in accounts}
    return WrittenMonth(tuple(sorted(files)), tuple(days), len(days) * len(accounts), transactions, closing)


def _entries_of(account: DemoAccount, index: int, day: date, rng: random.Random) -> list[_Entry]:
    least, most = account.weekday if day.weekday() < 5 else account.weekend
    count = rng.randrange(least, most + 1)
    kinds = rng.choices(_KINDS, weights=[kind[3] for kind in _KINDS], k=count)
    # Customers pay the same price on the same day: only the reference tells these apart.
    same = min(5, count)
    kinds[:same] = [_KINDS[2]] * same
    price = rng.randrange(9, 60) * 10**account.decimals - 1
    if (day + timedelta(days=1)).day == 1:
        kinds.append(("C", "NINT", "INTEREST OF THE MONTH", 0))
    entries = []
    for number, (mark, kind, wording, _) in enumerate(kinds, start=1):
        minor = price if number <= same else rng.randrange(1, 10 ** rng.randrange(3, 7))
        invoice = f"INV-{rng.randrange(100_000):05d}"
        customer_reference, text = "NONREF", wording
        if kind not in ("NCHG", "NINT"):
            customer_reference = rng.choice(("NONREF", invoice))
            text += f" {rng.choice(_PARTIES)} {invoice}/{day.year}, ORDER {rng.randrange(10_000)}"
        # Banks book some transactions with yesterday's or tomorrow's value, across month and year ends too.
        value_date = day + timedelta(days=rng.choice((0, 0, 0, 0, -1, 1)))
        booking = f"{value_date:%y%m%d}{day:%m%d}{mark}{_amount(account, minor)}{kind}"
        references = f"{customer_reference}//B{index:02d}{day:%y%m%d}{number:05d}"
        details = textwrap.wrap(f":86:{text}", 65, break_on_hyphens=False)
        fields = [f":61:{booking}{references}", wording, *details]
        entries.append(_Entry(-minor if mark in ("D", "RC") else minor, fields))
    return entries


def _message(account: DemoAccount, index: int, day: date, opening: int, entries: list[_Entry]) -> str:
    number = day.timetuple().tm_yday
    terminal = f"{account.bank}AXXX"
    origin = f"O9401830{day:%y%m%d}{terminal}{number:04d}{index:06d}{day:%y%m%d}1831N"
    closing = opening + sum(entry.signed for entry in entries)
    lines = [
        f"{{1:F01{terminal}0000000000}}{{2:{origin}}}{{4:",
        f":20:ST{day:%y%m%d}{index:02d}{number:05d}",
        f":25:{account.account}",
        f":28C:{number:05d}/001",
        f":60F:{_balance(account, day - timedelta(days=1), opening)}",
        *(field for entry in entries for field in entry.fields),
        f":62F:{_balance(account, day, closing)}",
        "-}",
    ]
    return "".join(f"{line}\r\n" for line in lines)


def _balance(account: DemoAccount, day: date, minor: int) -> str:
    return f"{'D' if minor < 0 else 'C'}{day:%y%m%d}{account.currency}{_amount(account, abs(minor))}"


def _amount(account: DemoAccount, minor: int) -> str:
    # SWIFT wants the comma even where no decimals follow.
    whole, part = divmod(minor, 10**account.decimals)
    return f"{whole}," + (f"{part:0{account.decimals}d}" if account.decimals else "")


# ---------------------------------------------------------------------------------------- reading


_PARSER_ERRORS = (RuntimeError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError)
_REQUIRED = {
    "transaction_reference": ":20:",
    "account_identification": ":25:",
    "statement_number": ":28C:",
    "final_opening_balance": ":60F: (a statement split into pages is not supported)",
    "final_closing_balance": ":62F: (a statement split into pages is not supported)",
}


def read_statements(folder: Path, business_date: date) -> Iterator[Statement]:
    """Give the statements of one business date, all files of that day, in order of their names.

    A day is read as a whole before its first statement is given: a file that does not balance stops the
    day before anything of it is posted.

    :param folder: where the files are, named ``*_YYYY-MM-DD.sta``.
    :param business_date: the day.
    :raises StatementsMissing: no file for that day; a retry helps once it has arrived.
    :raises StatementUnreadable: a file does not parse, or holds another day; a retry does not help.
    :raises StatementUnbalanced: a statement does not add up; a retry does not help.
    """
    paths = sorted(folder.glob(f"*_{business_date.isoformat()}.sta"))
    if not paths:
        raise StatementsMissing(folder, f"no statement file for {business_date}: has the bank delivered it?")
    day = [(path, statement) for path in paths for statement in parse_statement_file(path)]
    for path, statement in day:
        if statement["business_date"] != business_date.isoformat():
            number = statement["statement_no"]
            raise StatementUnreadable(path, f"has statement {number}, but is named for {business_date}")
    yield from (statement for _, statement in day)


def parse_statement_file(
    path: Path, *, statement_tag: mt940.tags.Statement | None = None, encoding: str = "ascii"
) -> list[Statement]:
    """Give every statement of one MT940 file.

    :param path: the file.
    :param statement_tag: how to read ``:61:`` where a bank deviates (see ``mt940.tags``); default SWIFT.
    :param encoding: SWIFT's character set is part of ASCII; some banks deviate.
    :raises StatementUnreadable: the file does not parse; a retry does not help.
    :raises StatementUnbalanced: a statement does not add up; a retry does not help.
    """
    tag = statement_tag or mt940.tags.Statement()
    try:
        parsed = mt940.parse_statements(
            path.read_bytes().decode(encoding),
            tags={tag.id: tag},
            # The details stay text as the bank wrote it, whatever scheme it uses.
            processors={"post_transaction_details": []},
            # Without these, a credit taken back would count as a credit, and long details would be cut.
            options=mt940.Options.all(),
        )
        statements = [_statement(transactions) for transactions in parsed]
    except _PARSER_ERRORS as error:
        # What the parser raises is not of one family, and never names the file.
        what = error.args[0] if isinstance(error, RuntimeError) else f"{type(error).__name__}, {error}"
        raise StatementUnreadable(path, f"not a readable MT940 statement: {what}") from error
    if not statements:
        raise StatementUnreadable(path, "not an MT940 file: no :20: in it")
    for statement in statements:
        check_statement(path, statement)
    return statements


def _statement(transactions: mt940.models.Transactions) -> Statement:
    data = transactions.data
    for field, tag in _REQUIRED.items():
        if not data.get(field):
            raise ValueError(f"{tag} is missing")
    opening, closing = data["final_opening_balance"], data["final_closing_balance"]
    if opening.amount.currency != closing.amount.currency:
        raise ValueError(f"opens in {opening.amount.currency} and closes in {closing.amount.currency}")
    account = data["account_identification"].strip()
    business_date = closing.date.isoformat()
    statement_no = f"{account}/{business_date}/{int(data['statement_number']):03d}"
    return Statement(
        statement_no=statement_no,
        account=account,
        currency=closing.amount.currency,
        business_date=business_date,
        opening=_decimal_text(opening.amount.amount),
        closing=_decimal_text(closing.amount.amount),
        lines=_lines(transactions, statement_no),
    )


def _lines(entries: mt940.models.Transactions, statement_no: str) -> list[StatementLine]:
    given = [(entry.data.get("bank_reference") or "").strip() for entry in entries]
    lines = []
    for position, entry in enumerate(entries, start=1):
        # Not the customer's reference, which may be NONREF or the payer's account. Where the bank gives
        # none, or one for several lines, the place in the statement stays the same at each reading.
        reference = given[position - 1]
        if not reference or given.count(reference) > 1:
            reference = f"{reference or statement_no}#{position:04d}"
        details = entry.data.get("transaction_details") or entry.data.get("extra_details") or ""
        lines.append(
            StatementLine(
                reference=reference,
                amount=_decimal_text(entry.data["amount"].amount),
                entry_date=(entry.data.get("entry_date") or entry.data["date"]).isoformat(),
                text=re.sub(r"\s+", " ", details).strip(),
            )
        )
    return lines


def _decimal_text(amount: Decimal) -> str:
    # Adding zero takes the sign off a negative zero, which some banks print.
    return f"{amount + 0:f}"


def check_statement(source: object, statement: Mapping[str, Any]) -> None:
    """Refuse a statement that does not add up.

    :param source: the file or statement, for the message.
    :param statement: the statement, as :class:`Statement`.
    :raises StatementUnbalanced: opening + transactions is not closing; a retry does not help.
    """
    opening, closing = Decimal(statement["opening"]), Decimal(statement["closing"])
    total = sum((Decimal(line["amount"]) for line in statement["lines"]), Decimal(0))
    if opening + total != closing:
        raise StatementUnbalanced(
            source,
            f"statement {statement['statement_no']} does not balance: opening {opening:f} + transactions "
            f"{total:f} = {opening + total:f}, but its closing balance is {closing:f} (difference "
            f"{closing - opening - total:f}). Nothing of it was posted; ask the bank for a correct one",
        )
