"""Results of callables as they are stored: ASCII JSON with a size limit."""

from __future__ import annotations

import json
from typing import Any

from airflow_guard.core.errors import ResultError

MAX_RESULT_BYTES = 32_768
"""Default limit of a stored result. A result is a receipt (an id, a count), not the data."""

_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


UNSTORED = "its result cannot be stored"
"""How the note of an effect begins that is done, and whose result is not in the ledger."""


def encode_result(value: Any, max_bytes: int = MAX_RESULT_BYTES) -> str:
    """Return the text that is stored for a result.

    :param value: a JSON value: ``None``, bool, int, float (finite), str, list, dict.
    :param max_bytes: size limit of the text, in bytes (ASCII: one byte a character).
    :raises ResultError: not JSON, not finite or too large. A retry does not help: change what the callable
        returns.
    """
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(
            f"The result ({type(value).__name__}) cannot be stored as JSON: {error}. Return a JSON value, for "
            "example str(amount) for a Decimal and .isoformat() for a date."
        ) from error
    if len(text) > max_bytes:
        raise ResultError(
            f"The result is {len(text)} bytes as JSON, more than {max_bytes}. Return a receipt (an id, a count), "
            "not the data, or raise [airflow_guard] result_max_bytes."
        )
    return text


def decode_result(text: str | None) -> Any:
    """Return the stored value; ``None`` also where no result is stored (ask :func:`has_result`)."""
    return None if text is None else json.loads(text)


def has_result(text: str | None) -> bool:
    """Return whether a result is stored: the stored ``None`` is one, a missing one is not."""
    return text is not None
