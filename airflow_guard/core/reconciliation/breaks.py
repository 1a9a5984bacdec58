"""Breaks: the documents in which two sides differ."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_guard.core.reconciliation.amounts import variance

if TYPE_CHECKING:
    from decimal import Decimal

    from airflow_guard.core.reconciliation.totals import Group


class BreakType(StrEnum):
    """What is wrong with a document."""

    MISSING_IN_TARGET = "missing_in_target"
    """The source has it, the target does not."""
    MISSING_IN_SOURCE = "missing_in_source"
    """The target has it, the source does not."""
    DUPLICATE_IN_SOURCE = "duplicate_in_source"
    """The source has its key more than once in a group, whatever the target has."""
    DUPLICATE_IN_TARGET = "duplicate_in_target"
    """The target has its key more than once in a group, whatever the source has."""
    AMOUNT_MISMATCH = "amount_mismatch"
    """Both have it, with another amount; or one of them with none."""
    ATTRIBUTE_MISMATCH = "attribute_mismatch"
    """Both have it, with another value in a compared column, or in another group."""
    NULL_KEY = "null_key"
    """Rows of one side and group whose key is NULL, or partly: no document can be named. One break for all of them."""


@dataclass(frozen=True, slots=True)
class Break:
    """One difference.

    :param type: what is wrong.
    :param key: the document's key as text, one element a key column; empty for ``null_key``.
    :param group: its group; the source's if the sides put it into two.
    :param field: the column that differs (``amount_mismatch``, ``attribute_mismatch``), by its logical name.
    :param source_amount: its amount in the source, of the column in ``field`` or else of the first amount column; the
        sum over all its rows for duplicates and ``null_key``. ``None``: not there, or NULL.
    :param target_amount: the same in the target.
    :param source_value: the source's value of a compared or group column, as text.
    :param target_value: the target's value.
    :param source_records: how many rows of the source have this key.
    :param target_records: how many rows of the target have it.
    :param tolerated: whether a tolerance of the rules covers it, so that it fails nothing.
    """

    type: BreakType
    key: tuple[str, ...]
    group: Group = ()
    field: str | None = None
    source_amount: Decimal | None = None
    target_amount: Decimal | None = None
    source_value: str | None = None
    target_value: str | None = None
    source_records: int = 0
    target_records: int = 0
    tolerated: bool = False

    @property
    def document(self) -> str:
        """The key in one piece, for people."""
        return " / ".join(self.key)

    @property
    def variance(self) -> Decimal | None:
        """Target minus source amount; what a side does not have counts as zero. ``None`` if both have none."""
        return variance(self.source_amount, self.target_amount)
