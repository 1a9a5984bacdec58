"""Functions that SQLite gets for a reconciliation: decimals, canonical texts, MD5.

They are exact where SQLite's own ``sum`` goes through floats or overflows. An error inside a function reaches the
caller of the statement only as "user-defined function raised exception"; :class:`Raised` keeps the error itself.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_guard.core.errors import ReconciliationError
from airflow_guard.core.reconciliation.amounts import EXACT, amount_of
from airflow_guard.store.reconciliation.canonical import as_integer, as_text, plain_decimal
from airflow_guard.store.reconciliation.checksum import slice_of
from airflow_guard.store.reconciliation.columns import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_INT64 = 2**63


class Raised:
    """Keeps the first error that a function raised on a connection."""

    def __init__(self) -> None:
        self.error: ReconciliationError | None = None

    def keeping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its errors kept."""

        def kept(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except ReconciliationError as error:
                self.error = self.error or error
                raise

        return kept


def install(driver_connection: Any) -> Raised:
    """Add the functions to a connection of the driver ``sqlite3``."""
    raised = Raised()
    functions: dict[str, tuple[int, Callable[..., Any]]] = {
        "airflow_guard_text": (3, lambda kind, column, value: as_text(Kind[kind], value, column)),
        "airflow_guard_integer": (2, lambda column, value: as_integer(value, column)),
        "airflow_guard_amount": (3, _amount),
        "airflow_guard_scaled": (2, _scaled),
        "airflow_guard_slice": (1, lambda text: None if text is None else slice_of(text)),
    }
    for name, (arguments, function) in functions.items():
        driver_connection.create_function(name, arguments, raised.keeping(function), deterministic=True)
    driver_connection.create_aggregate("airflow_guard_total", 1, _Total)
    return raised


def _amount(inexact: int, column: str, value: object) -> str | None:
    return None if value is None else plain_decimal(amount_of(value, column, inexact=bool(inexact)))


def _scaled(amount: str | None, scale: int) -> int | None:
    if amount is None:
        return None
    scaled = EXACT.multiply(Decimal(amount), Decimal(10**scale))
    if scaled == scaled.to_integral_value() and -_INT64 <= scaled < _INT64:
        return int(scaled)
    return slice_of(amount)  # the other side has no such amount, so any other number will do


class _Total:
    """Sum of integers or of decimals as text; NULL if there is none."""

    def __init__(self) -> None:
        self.whole = 0
        self.decimal: Decimal | None = None
        self.any = False

    def step(self, value: int | str | None) -> None:
        if value is None:
            return
        self.any = True
        if isinstance(value, int):
            self.whole += value
        else:
            self.decimal = EXACT.add(self.decimal or Decimal(0), Decimal(value))

    def finalize(self) -> str | None:
        if not self.any:
            return None
        return (
            str(self.whole) if self.decimal is None else f"{EXACT.add(self.decimal, Decimal(self.whole)):f}"
        )
