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


def fingerprint(payload: Mapping[str, Any], fields: Sequence[str] | None = None) -> str:
    """Return the fingerprint of a mapping document.

    :param payload: the document; values are taken in a canonical text form (``1`` and ``"1"`` differ,
        ``Decimal("1.0")`` and ``Decimal("1.00")`` differ: the text that is sent differs).
    :param fields: only these fields decide (``fingerprint_fields``); ``None``: all.
    :raises DocumentError: a field of ``fields`` is missing in the payload. A retry does not help.
    """
    names = sorted(payload) if fields is None else fields
    try:
        parts = [_canonical(payload[name]) for name in names]
    except KeyError as error:
        raise DocumentError(f"fingerprint_fields names {error.args[0]!r}, which the document does not have.") from None
    digest = hashlib.sha256(_shape(tuple(names)).encode())
    digest.update(b"\x1f".join(b"%d:%b" % (len(part), part) for part in parts))
    if len(names) > MAX_NAMED_FIELDS:
        return digest.hexdigest()[:32]
    return f"{digest.hexdigest()[:32]} {_shape(tuple(names)) % tuple(map(zlib.crc32, parts))}"


def changed_fields(stored: str | None, current: str | None) -> list[str] | None:
    """Return the names of the fields that differ, ``None`` if the content is the same.

    An empty list means that it differs, but the fields cannot be named (too many, or none stored). A row
    without a fingerprint (adopted history) is never "changed": there is nothing to compare with.
    """
    if not stored or not current or stored[:32] == current[:32]:
        return None
    before, after = _fields(stored), _fields(current)
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


_shapes: dict[tuple[str, ...], str] = {}


def _shape(names: tuple[str, ...]) -> str:
    # One batch has one or two shapes: the format string is made once, not once a document.
    shape = _shapes.get(names)
    if shape is None:
        if len(_shapes) > 1000:
            _shapes.clear()
        shape = " ".join(quote(str(name), safe="").replace("%", "%%") + "=%08x" for name in names)
        _shapes[names] = shape
    return shape


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text[33:].split(" ") if part)
    return {unquote(name): value for name, _, value in pairs}


def _canonical(value: Any) -> bytes:
    if value.__class__ is str:
        return b"s" + value.encode("utf-8", "surrogatepass")
    if value.__class__ is int:
        return b"i%d" % value
    if isinstance(value, (Mapping, list, tuple)):
        return b"j" + json.dumps(value, sort_keys=True, default=_typed, ensure_ascii=True).encode()
    return f"{type(value).__name__}:{value}".encode("utf-8", "surrogatepass")


def _typed(value: Any) -> str:
    return f"{type(value).__name__}:{value}"
