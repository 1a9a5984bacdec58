"""The portable checksum: the same integers from PostgreSQL, MySQL, MariaDB and Python.

A row's checksum is ``multiplier(key) * mixed_value(value)``, one for each amount and one for the compared columns, and a
bucket's is the sum of its rows' (a sum, not XOR, which would lose rows that occur twice). The multiplier depends on
the key in a way that is not linear: then errors that cancel each other out in the amounts do not cancel out here.
For an integer key it is the product of two linear forms modulo two primes, for other keys bits of MD5.

Every intermediate result fits a signed 64-bit integer, because PostgreSQL, MySQL and SQLite raise or round beyond it.
Division truncates and the remainder has the sign of the dividend, as in SQL and unlike in Python.
"""

from __future__ import annotations

import hashlib

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
    return remainder(one * other, P1)


def mixed_value(value: int | None) -> int:
    """Return a value for multiplication, below 2^32."""
    return remainder(NULL_VALUE if value is None else value, P2) + OFFSET


def bucket(key: int, *, mixed: bool) -> int:
    """Return the bucket of a key, between -BUCKETS and BUCKETS."""
    return remainder(key if mixed else quotient(key, BLOCK), BUCKETS)
