"""The suppliers of the demo: what is wrong with them is wrong where the demo says so, and nowhere else."""

from __future__ import annotations

import pytest

from demo.suppliers import NOT_STARTED, PAID, PAYMENT_DAYS, iban_is_right, payments_of


@pytest.mark.parametrize(
    ("account", "right"),
    [
        ("DE89370400440532013000", True),  # the example of the standard
        ("CH9300762011623852957", True),
        ("DE89370400440532013001", False),
        ("DE98370400440532013000", False),
    ],
)
def test_the_check_digits_of_an_account_are_checked(account: str, right: bool) -> None:
    assert iban_is_right(account) is right


def test_each_payment_that_is_not_made_has_one_reason() -> None:
    payments = [payment for day in PAYMENT_DAYS for payment in payments_of(day)]
    not_made = [payment for payment in payments if payment["end_to_end_id"] not in PAID]
    reasons = [(not iban_is_right(each["account"]), each["currency"] != "EUR") for each in not_made]
    assert sorted(reasons) == [(False, True), (True, False)]
    assert len(PAID) == len(payments) - 2
    assert len({payment["end_to_end_id"] for payment in payments}) == len(payments)


def test_the_day_that_nobody_starts_has_payments() -> None:
    assert NOT_STARTED not in PAYMENT_DAYS
    assert payments_of(NOT_STARTED)
    assert not {payment["end_to_end_id"] for payment in payments_of(NOT_STARTED)} & PAID
