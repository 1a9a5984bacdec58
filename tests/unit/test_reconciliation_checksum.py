"""The portable checksum, and the ranges that a drill-down reads."""

from __future__ import annotations

import itertools
import random

import pytest

from airflow_guard.reconciling import canonical
from airflow_guard.reconciling.fetching import ranges_of

INT64 = 2**63
EXTREMES = [
    0,
    1,
    -1,
    canonical.P1,
    -canonical.P1,
    canonical.P2,
    2**62,
    -(2**62),
    INT64 - 1,
    -INT64,
    canonical.NULL_VALUE,
]


def row(key: int, value: int | None) -> int:
    return canonical.multiplier(key, mixed=False) * canonical.mixed_value(value)


def test_every_intermediate_result_fits_64_bits():
    """PostgreSQL raises beyond them, and SQLite rounds."""
    largest = max(canonical.A1, canonical.A2) * canonical.P1 + max(canonical.C1, canonical.C2)
    assert largest < INT64
    assert canonical.P1 * canonical.P2 < INT64
    assert canonical.P1 * (canonical.P2 + canonical.OFFSET) < INT64
    for key, value in itertools.product(EXTREMES, [*EXTREMES, None]):
        assert abs(row(key, value)) < INT64
    for key in EXTREMES:
        assert abs(canonical.bucket(key, mixed=False)) < canonical.BUCKETS < canonical.NULL_BUCKET


@pytest.mark.parametrize(
    ("number", "divisor", "expected"), [(7, 2, (3, 1)), (-7, 2, (-3, -1)), (-8, 2, (-4, 0))]
)
def test_division_is_that_of_sql(number, divisor, expected):
    assert (canonical.quotient(number, divisor), canonical.remainder(number, divisor)) == expected


def test_errors_that_cancel_each_other_out_change_the_sum():
    """Also in patterns over neighbouring keys that sums of squares and of linear forms do not see."""
    patterns = [(1, -1), (1, -2, 1), (1, -1, -1, 1), (1, -3, 3, -1), (1, -1, -1, 1, -1, 1, 1, -1)]
    draw = random.Random(1)
    for pattern in patterns:
        for _ in range(2_000):
            start, step = draw.randrange(-(2**40), 2**40), draw.choice([1, 2, 10, 512, 2**20])
            amount, by = draw.randrange(-(10**9), 10**9), draw.choice([1, 100, 100_000])
            keys = [start + step * n for n in range(len(pattern))]
            before = sum(row(key, amount) for key in keys)
            after = sum(row(key, amount + by * each) for key, each in zip(keys, pattern, strict=True))
            assert before != after


def test_swapped_amounts_change_the_sum():
    draw = random.Random(2)
    for _ in range(5_000):
        start, one, other = draw.randrange(2**31), draw.randrange(10**6), draw.randrange(10**6)
        # two swaps of the same size in opposite directions, which a product of key and amount does not see
        right = row(start, one) + row(start + 1, other) + row(start + 2, other) + row(start + 3, one)
        wrong = row(start, other) + row(start + 1, one) + row(start + 2, one) + row(start + 3, other)
        assert (right == wrong) == (one == other)


def test_a_document_without_amount_counts():
    assert row(1, 0) + row(2, 0) != row(1, 0) + row(3, 0)
    assert row(1, None) != row(1, 0)


def test_texts_that_are_joined_can_be_told_apart():
    joined = [
        canonical.joined(texts)
        for texts in [("ab", "c"), ("a", "bc"), ("", "abc"), (None, "abc"), ("-", "abc"), ("1:a", "")]
    ]
    assert len(set(joined)) == len(joined)


def test_ranges_cover_every_interval_and_are_few():
    draw = random.Random(3)
    intervals = [(low := draw.randrange(10**6), low + draw.randrange(500)) for _ in range(500)]
    ranges = ranges_of(intervals)
    assert len(ranges) <= 40
    assert all(any(low <= start and end <= high for low, high in ranges) for start, end in intervals)
    assert ranges == sorted(ranges)
    assert ranges_of([(1, 5), (3, 9), (10, 12), (20, 21)]) == [(1, 12), (20, 21)]
    assert ranges_of([]) == []


@pytest.mark.parametrize(
    "span", [(-20_000_000, 20_000_000), (5, 9_000_000), (-9_000_000, -5), (0, 600), (-600, 0), (7, 7)]
)
def test_ranges_of_a_bucket_hold_all_its_keys_and_no_others(span):
    draw = random.Random(4)
    for _ in range(500):
        key = draw.randint(*span)
        ranges = list(canonical.keys_of(canonical.bucket(key, mixed=False), *span))
        assert any(low <= key <= high for low, high in ranges)
        for low, high in ranges:
            for each in (low, high):
                assert canonical.bucket(each, mixed=False) == canonical.bucket(key, mixed=False)
