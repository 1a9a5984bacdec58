"""The portable checksum: the same integers from PostgreSQL, MySQL, MariaDB and Python.

A row's checksum is ``multiplier(key) * mixed_value(value)``, one for each amount and one for the compared columns, and a
bucket's is the sum of its rows' (a sum, not XOR, which would lose rows that occur twice). The multiplier depends on
the key in a way that is not linear: then errors that cancel each other out in the amounts do not cancel out here.
For an integer key it is the exclusive or of two linear forms modulo two primes, for other keys bits of MD5. A product of
two forms is cheaper in one database, but a square: errors in the pattern 1, -3, 3, -1 over neighbours escape it.

Every intermediate result fits a signed 64-bit integer, because PostgreSQL, MySQL and SQLite raise or round beyond it.
Division truncates and the remainder has the sign of the dividend, as in SQL and unlike in Python.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

P1 = 2**31 - 1
P2 = 2**31 - 19
"""Primes; a 62-bit key is known by its two remainders."""
A1, C1, A2, C2 = 1_103_515_245, 715_827_883, 1_220_703_125, 430_970_861
"""Any numbers below 2^31 that have nothing to do with each other."""
OFFSET = 1_618_033_989
"""Added to a value, so that a row counts whose amount is zero."""
NULL_VALUE = -614_891_469_123_651_720
"""Stands for NULL. If an amount happens to be this, its bucket still differs in the number of amounts."""

BLOCK = 512
"""Integer keys fall into buckets by blocks of neighbours, so that a bucket can be read through an index."""
BUCKETS = 16_381
"""A prime, so that keys with a step (a sequence in the low bits) spread over all of them."""
NULL_BUCKET = 20_000
"""The bucket of rows whose key is NULL or partly NULL."""
HEX_DIGITS = 15
"""Hexadecimal digits of MD5 that are used: 60 bits."""


def quotient(number: int, divisor: int) -> int:
    """Return the quotient, truncated as in SQL."""
    return number // divisor if number >= 0 else -(-number // divisor)


def remainder(number: int, divisor: int) -> int:
    """Return the remainder with the sign of the dividend, as in SQL."""
    return number % divisor if number >= 0 else -(-number % divisor)


def slice_of(text: str) -> int:
    """Return 60 bits of the MD5 of a text."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:HEX_DIGITS], 16)


def joined(texts: tuple[str | None, ...]) -> str:
    """Return several texts as one from which they can be told apart; NULL is not the empty text."""
    return "".join("-" if text is None else f"{len(text)}:{text}" for text in texts)


def multiplier(key: int, *, mixed: bool) -> int:
    """Return the multiplier of a key.

    :param mixed: whether the key is random bits already (MD5).
    """
    if mixed:
        return remainder(key, P1)
    one = remainder(A1 * remainder(key, P1) + C1, P1)
    other = remainder(A2 * remainder(key, P2) + C2, P2)
    return one ^ other


def mixed_value(value: int | None) -> int:
    """Return a value for multiplication, below 2^32."""
    return remainder(NULL_VALUE if value is None else value, P2) + OFFSET


def bucket(key: int, *, mixed: bool) -> int:
    """Return the bucket of a key, between -BUCKETS and BUCKETS."""
    return remainder(key if mixed else quotient(key, BLOCK), BUCKETS)


def keys_of(bucket: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of integer keys between two keys that fall into a bucket."""
    first, last = quotient(low, BLOCK), quotient(high, BLOCK)
    # Division truncates: the blocks of negative buckets are negative, and block 0 lies around zero.
    for block in range(first + (bucket - first) % BUCKETS, last + 1, BUCKETS):
        if remainder(block, BUCKETS) == bucket:
            start, end = block * BLOCK, block * BLOCK
            yield (start if block > 0 else start - BLOCK + 1), (end if block < 0 else end + BLOCK - 1)
