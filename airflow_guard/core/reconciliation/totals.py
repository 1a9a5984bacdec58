"""Control totals of one group on one side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

Group = tuple[str | None, ...]
"""The values of ``group_by`` as text; ``None`` is NULL, and a group of its own."""


@dataclass(frozen=True, slots=True)
class ControlTotals:
    """What one side says about one group. A group that a side does not have has no control totals at all.

    :param records: number of rows, also of those without amount or key.
    :param amounts: the total of each amount column, exact; ``None`` if no row has an amount, which is not zero.
    :param amounts_missing: rows whose amount is NULL, for each amount column.
    :param hash_total: sum of the checksums of all rows with a key (over key, amounts and compared columns);
        ``None`` without keys or with float amounts. Comparable within one comparison only.
    """

    records: int
    amounts: tuple[Decimal | None, ...]
    amounts_missing: tuple[int, ...]
    hash_total: int | None = None
