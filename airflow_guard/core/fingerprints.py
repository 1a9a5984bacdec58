"""The fingerprint of a document's content: tells "the same again" from "changed since", and which fields.

Written ``<digest> <field>=<crc> …``: the 128-bit digest decides whether the content is equal; the CRCs only
serve to name the fields that changed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from airflow_guard.core.errors import DocumentError

MAX_NAMED_FIELDS = 40
"""Above this many fields only the digest is stored: changed content is found, but not named by field."""


def fingerprint(
    payload: Mapping[str, Any], fields: Sequence[str] | None = None, identity: str | None = None
) -> str:
    """Return the fingerprint of a mapping document.

    :param payload: the document; values are taken in a canonical text form (``1`` and ``"1"`` differ,
        ``Decimal("1.0")`` and ``Decimal("1.00")`` differ: the text that is sent differs).
    :param fields: only these fields decide (``fingerprint_fields``), in any order; ``None``: all.
    :param identity: the field that names the document; left out, since the key holds it in the form that decides
        what is equal (``"INV-1 "`` and ``"INV-1"`` are one document, not changed content).
    :raises DocumentError: a field of ``fields`` is missing in the payload, or the content has no canonical form
        (names of several types, a circle). A retry does not help.
    """
    try:
        names, shape = _shape(tuple(payload if fields is None else fields), identity)
        parts = [
            value.encode("utf-8", "surrogatepass") if value.__class__ is str else _canonical(value)
            for value in map(payload.__getitem__, names)
        ]
    except KeyError as error:
        raise DocumentError(
            f"fingerprint_fields names {error.args[0]!r}, which the document does not have."
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(
            f"The content of a document cannot be compared ({error}). Give text as names of its fields, and plain "
            "values."
        ) from error
    # The lengths go first: neighbouring values cannot run into each other.
    digest = hashlib.sha256(f"{shape}{[*map(len, parts)]}".encode() + b"".join(parts)).hexdigest()[:32]
    if len(names) > MAX_NAMED_FIELDS:
        return digest
    return f"{digest} {shape % tuple(map(zlib.crc32, parts))}"


def changed_fields(stored: str | None, current: str | None) -> list[str] | None:
    """Return the names of the fields that differ, ``None`` if the content is the same.

    An empty list means that it differs, but the fields cannot be named (too many, or none stored). A row
    without a fingerprint (adopted history) is never "changed": there is nothing to compare with.
    """
    if not stored or not current or stored[:32] == current[:32]:
        return None
    before, after = _fields(stored), _fields(current)
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


_shapes: dict[tuple[tuple[str, ...], str | None], tuple[tuple[str, ...], str]] = {}


def _shape(given: tuple[str, ...], identity: str | None) -> tuple[tuple[str, ...], str]:
    # One batch has one or two shapes: the order and the format string are made once, not once a document.
    shape = _shapes.get((given, identity))
    if shape is None:
        if len(_shapes) > 1000:
            _shapes.clear()
        odd: list[object] = [name for name in given if type(name) is not str]
        if odd:
            raise TypeError(f"field name {odd[0]!r} is not text")
        names = tuple(sorted(name for name in set(given) if name != identity))
        text = " ".join(quote(name, safe="").replace("%", "%%") + "=%08x" for name in names)
        shape = _shapes[given, identity] = (names, text)
    return shape


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text[33:].split(" ") if part)
    return {unquote(name): value for name, _, value in pairs}


def _canonical(value: Any) -> bytes:
    """Return a value other than text; a leading NUL, which text hardly has, keeps ``1`` and ``"1"`` apart."""
    if value.__class__ is int:
        return b"\x00i%d" % value
    if isinstance(value, (Mapping, list, tuple)):
        return b"\x00j" + json.dumps(value, sort_keys=True, default=_typed, ensure_ascii=True).encode()
    return b"\x00" + _typed(value).encode("utf-8", "surrogatepass")


def _typed(value: Any) -> str:
    if isinstance(value, (set, frozenset)):
        # The order of a set of texts differs from process to process.
        value = sorted(map(_typed, value))
    return f"{type(value).__name__}:{value}"
