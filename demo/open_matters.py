"""What the demo leaves open, so that the pages have something to show in every state.

Nothing of it is written into the ledger by hand: suppliers are paid, which goes wrong in the ways in which it does, and
the print shop is still at a letter when the demo ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_guard.core.errors import GuardError
from demo.provocations import Provocation, tries_of
from demo.scene import LETTERS_DAG, PAYMENTS_DAG
from demo.suppliers import ALL_WELL, NOT_STARTED, PAID, PAYMENT_DAYS

if TYPE_CHECKING:
    from datetime import date

    from demo.scene import Scene

__all__ = ["OpenMatters", "begin", "finish"]

_PRINTED_NOW = NOT_STARTED.replace(day=30)


@dataclass(frozen=True)
class OpenMatters:
    """The runs that are left as they are.

    :param payments: of each day on which somebody started the payments.
    :param letters: the run that is at work.
    :param letter: what the print shop is at.
    """

    payments: dict[date, str]
    letters: str
    letter: str


def begin(scene: Scene) -> OpenMatters:
    """Start the payments of five days, and letters of which the first takes until the demo ends."""
    client, letter = scene.airflow.client, scene.statements[_PRINTED_NOW][0]["statement_no"]
    scene.print_shop.hold(letter, "before")
    letters = client.trigger(LETTERS_DAG, conf={"business_date": _PRINTED_NOW.isoformat()})
    payments = {
        day: client.trigger(PAYMENTS_DAG, conf={"business_date": day.isoformat()}) for day in PAYMENT_DAYS
    }
    return OpenMatters(payments, letters, letter)


def finish(scene: Scene, open_: OpenMatters) -> list[Provocation]:
    """Wait until all stands as it is to be left."""
    client = scene.airflow.client
    with scene.screen.step(
        "Suppliers are paid, and letters are printed: this is left for you to look at"
    ) as step:
        for day, run_id in open_.payments.items():
            run = client.wait_for_run(PAYMENTS_DAG, run_id)
            if (run.state == "success") != (day == ALL_WELL):
                raise GuardError(f"The payments of {day} were not to end as {run.state}.")
        client.wait(lambda: open_.letter in scene.print_shop.held(), "the print shop to be at a letter")
        step.note("a mistyped IBAN: the payment is rejected, and not tried again until a person says so")
        step.note("no exchange rate: the payment failed before it was sent; the next run sends it")
        step.note("no folder for a receipt: the payment is made and not repeated, a person files the receipt")
        step.note("the bank kept back its charges: an open break of 0.25")
        step.note(
            f"{NOT_STARTED:%-d %B}: nobody started the payments; {_PRINTED_NOW:%-d %B}: letters in progress"
        )
    return [
        Provocation(
            title="Suppliers paid on five days; an IBAN, an exchange rate and a folder are wrong",
            remark="one rejected, one not sent, one paid and not filed: each waits, none is paid twice",
            tries=tries_of(scene.bank, open_.payments.values(), task_id="pay"),
            replayed=0,
            # The payment whose receipt could not be filed is made, and counts as failed.
            executed=len(PAID) - 1,
        )
    ]
