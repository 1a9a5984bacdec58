"""Test your own callables under a real ledger: without Airflow, without a server, in milliseconds.

>>> from datetime import timedelta
>>> from airflow_guard import External
>>> from airflow_guard.testing import TestLedger
>>> paid = []
>>> def pay(document, idempotency_key):
...     paid.append(document)
...     return {"receipt": document}
>>> def bank_knows(document):
...     return document in paid
>>> effect = External(verify=bank_knows, settle_after=timedelta(minutes=5))

A second run does not pay again:

>>> with TestLedger() as ledger:
...     first = ledger.run(pay, documents=["INV-1", "INV-2"], side_effect=effect)
...     again = ledger.run(pay, documents=["INV-1", "INV-2", "INV-3"], side_effect=effect)
...     first.executed, again.replayed, again.executed, paid
(2, 2, 1, ['INV-1', 'INV-2', 'INV-3'])

Killed after the bank has the payment and before the ledger knows: in doubt, and ``verify`` decides:

>>> with TestLedger() as ledger:
...     ledger.crash(pay, at="after", document="INV-4", side_effect=effect)
...     ledger.expire_leases()
...     after = ledger.run(pay, document="INV-4", side_effect=effect)
...     after.replayed, after.error, paid.count("INV-4"), ledger.row("INV-4").state.value
(1, None, 1, 'completed')

Killed before the bank has it: a "no" of ``verify`` counts once ``settle_after`` is over:

>>> with TestLedger() as ledger:
...     ledger.crash(pay, at="inside", document="INV-5", side_effect=effect)
...     ledger.expire_leases()
...     early = ledger.run(pay, document="INV-5", side_effect=effect)
...     ledger.let_time_pass(timedelta(minutes=5))
...     late = ledger.run(pay, document="INV-5", side_effect=effect)
...     early.in_doubt, early.retryable, late.executed, paid.count("INV-5")
(1, True, 1, 1)
"""

from __future__ import annotations

from airflow_guard.testing.ledger import TestLedger
from airflow_guard.testing.parameters import Parameters
from airflow_guard.testing.process import Killed, Moment
from airflow_guard.testing.run import Run

__all__ = ["Killed", "Moment", "Parameters", "Run", "TestLedger"]
