"""The suppliers of the demo: what is to be paid to them, and what their bank says of it.

The orders lie in the business database, what the bank booked in a database file of its own. Something is wrong with most
days, as in life: an exchange rate has not come, the bank keeps back its charges, an account number is mistyped, the archive
has no folder for a new supplier. On one day nobody started the payments.
"""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict

from sqlalchemy import Column, Date, MetaData, Numeric, String, Table, create_engine, insert

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

__all__ = [
    "NOT_STARTED",
    "PAID",
    "PAYMENT_DAYS",
    "Payment",
    "deliver_payments",
    "iban_is_right",
    "payments_of",
]

NO_RATE, ALL_WELL, CHARGED, NOT_STARTED, MISTYPED, NEW_SUPPLIER = (
    date(2026, 1, day) for day in (23, 26, 27, 28, 29, 30)
)
PAYMENT_DAYS = (NO_RATE, ALL_WELL, CHARGED, MISTYPED, NEW_SUPPLIER)
"""The days on which somebody starts the payments."""
_CHARGES, _CHARGED_PAYMENT = Decimal("0.25"), f"E2E-{CHARGED:%Y%m%d}-01"

_ACCOUNTS = {
    "ADLERSTEIN WERKZEUGE": "DE60999900000000007001",
    "BRUECKMANN + SOEHNE": "DE33999900000000007002",
    "INNTALER MOLKEREI": "DE06999900000000007003",
    "CEDAR HARBOUR FREIGHT": "CH3999990000000007004",
}
_NEWCOMER = "NORDWIND SPEDITION"
_NEWCOMERS_ACCOUNT = "DE49999900000000007005"
_MISTYPED_ACCOUNT = "DE33999900000000007020"


class Payment(TypedDict):
    """One payment. ``amount`` is a decimal string, ``business_date`` an ISO date."""

    end_to_end_id: str
    business_date: str
    supplier: str
    account: str
    currency: str
    amount: str


def payments_of(business_date: date) -> list[Payment]:
    """Return what is to be paid on a day."""
    payments = [
        Payment(
            end_to_end_id=f"E2E-{business_date:%Y%m%d}-{number:02}",
            business_date=business_date.isoformat(),
            supplier=supplier,
            account=account,
            currency="EUR",
            amount=f"{business_date.day * 137 + number * 411}.{business_date.day * number % 100:02}",
        )
        for number, (supplier, account) in enumerate(_ACCOUNTS.items(), 1)
    ]
    if business_date == NO_RATE:
        payments[3]["currency"] = "USD"
    elif business_date == MISTYPED:
        payments[1]["account"] = _MISTYPED_ACCOUNT
    elif business_date == NEW_SUPPLIER:
        payments[2]["supplier"], payments[2]["account"] = _NEWCOMER, _NEWCOMERS_ACCOUNT
    return payments


PAID = frozenset(
    payment["end_to_end_id"]
    for day in PAYMENT_DAYS
    for payment in payments_of(day)
    if payment["currency"] == "EUR" and payment["account"] != _MISTYPED_ACCOUNT
)
"""What the bank must have been asked to pay, each once."""


def iban_is_right(account: str) -> bool:
    """Whether the check digits of an IBAN are right (ISO 13616: the remainder by 97 is one)."""
    turned = account[4:] + account[:4]
    return int("".join(str(int(character, 36)) for character in turned)) % 97 == 1


_order = Table(
    "payment_order",
    MetaData(),
    Column("end_to_end_id", String(35), primary_key=True),
    Column("business_date", Date, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount", Numeric(18, 2), nullable=False),
)
_booked = Table(
    "booked_payment",
    MetaData(),
    Column("end_to_end_id", String, primary_key=True),
    Column("business_date", Date, nullable=False),
    Column("currency", String, nullable=False),
    Column("amount", String, nullable=False),  # SQLite has no decimals
)


def deliver_payments(bank: Engine, bookings: Path, folder: Path) -> None:
    """Write the orders, what the bank books, the exchange rates, and the archive's folders.

    :param bank: the business database.
    :param bookings: database file of the bank's.
    :param folder: where rates and archive lie.
    """
    payments = [payment for day in (*PAYMENT_DAYS, NOT_STARTED) for payment in payments_of(day)]
    with bank.begin() as connection:
        _order.create(connection)
        orders = [{**_facts(payment), "amount": Decimal(payment["amount"])} for payment in payments]
        connection.execute(insert(_order), orders)
    engine = create_engine(f"sqlite:///{bookings}")
    booked = [payment for payment in payments if payment["end_to_end_id"] in PAID]
    with engine.begin() as connection:
        _booked.create(connection)
        connection.execute(
            insert(_booked), [{**_facts(payment), "amount": _booked_amount(payment)} for payment in booked]
        )
    engine.dispose()
    for supplier in _ACCOUNTS:
        (folder / "receipts" / supplier).mkdir(parents=True)
    for day in PAYMENT_DAYS:
        if day != NO_RATE:
            (folder / f"rates_{day}.json").write_text(json.dumps({"USD": "1.0870"}))


def _facts(payment: Payment) -> dict[str, Any]:
    return {
        "end_to_end_id": payment["end_to_end_id"],
        "business_date": date.fromisoformat(payment["business_date"]),
        "currency": payment["currency"],
    }


def _booked_amount(payment: Payment) -> str:
    charges = _CHARGES if payment["end_to_end_id"] == _CHARGED_PAYMENT else 0
    return f"{Decimal(payment['amount']) - charges:f}"
