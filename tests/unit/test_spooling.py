"""What is copied of a side's rows: the bytes of a view, not the text that its object has."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from uuid import UUID

import pytest

from airflow_guard.reconciling.spooling import _plain


@pytest.mark.parametrize(
    ("value", "copied"),
    [
        (memoryview(b"\x00\x01"), b"\x00\x01"),
        (bytearray(b"\x00\x01"), b"\x00\x01"),
        (b"\x00\x01", b"\x00\x01"),
        (Decimal("1E+2"), "100"),
        (date(2025, 3, 31), "2025-03-31"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (None, None),
    ],
)
def test_a_value_is_copied_as_what_it_is(value: object, copied: object) -> None:
    assert _plain(value) == copied
