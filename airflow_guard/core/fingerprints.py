"""The fingerprint of a document's content: tells "the same again" from "changed since", and which fields.

Written ``<digest> <CRCs> <field> …``: the 128-bit digest decides whether the content is equal; the CRCs, eight
characters a field, only serve to name the fields that changed.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
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
    given = tuple(payload if fields is None else fields)
    try:
        shape = _shapes.get((given, identity)) or _shape(given, identity)
        values = shape.values_of(payload)
        try:
            # The usual case, in few steps: this runs for every document.
            content = shape.prefix + "\0".join(values).encode("utf-8", "surrogatepass")
        except TypeError:
            content = b""
        if content.count(0) == shape.nuls:
            parts = content[len(shape.prefix) :].split(b"\0")
        else:
            parts = [_canonical(value) for value in values]
            # The lengths go first: neighbouring values cannot run into each other.
            content = b"".join([b"%a " % [*map(len, parts)], shape.prefix, *parts])
    except KeyError as error:
        raise DocumentError(
            f"fingerprint_fields names {error.args[0]!r}, which the document does not have."
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(
            f"The content of a document cannot be compared ({error}). Give text as names of its fields, and plain "
            "values."
        ) from error
    digest = hashlib.sha256(content).hexdigest()[:32]
    if shape.pack is None:
        return digest
    return f"{digest} {shape.pack(*map(zlib.crc32, parts)).hex()}{shape.names}"


def changed_fields(stored: str | None, current: str | None) -> list[str] | None:
    """Return the names of the fields that differ, ``None`` if the content is the same.

    An empty list means that it differs, but the fields cannot be named (too many, or none stored). A row
    without a fingerprint (adopted history) is never "changed": there is nothing to compare with.
    """
    if not stored or not current or stored[:32] == current[:32]:
        return None
    before, after = _fields(stored), _fields(current)
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


class _Shape:
    """What documents with the same field names have in common, made once: a batch has one or two shapes."""

    __slots__ = ("names", "nuls", "pack", "prefix", "values_of")

    def __init__(self, names: tuple[str, ...]) -> None:
        quoted = "".join(" " + quote(name, safe="") for name in names)
        self.prefix = f"{len(names)}{quoted}\0".encode()
        self.nuls = max(1, len(names))
        self.names = quoted
        self.pack = struct.Struct(f">{len(names)}I").pack if 0 < len(names) <= MAX_NAMED_FIELDS else None
        if len(names) > 1:
            self.values_of: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*names)
        else:
            self.values_of = lambda payload: tuple(payload[name] for name in names)


_shapes: dict[tuple[tuple[str, ...], str | None], _Shape] = {}


def _shape(given: tuple[str, ...], identity: str | None) -> _Shape:
    if len(_shapes) > 1000:
        _shapes.clear()
    odd: list[object] = [name for name in given if type(name) is not str]
    if odd:
        raise TypeError(f"field name {odd[0]!r} is not text")
    names = tuple(sorted(name for name in set(given) if name != identity))
    return _shapes.setdefault((given, identity), _Shape(names))


def _fields(text: str) -> dict[str, str]:
    checks, *names = text[33:].split(" ")
    return {unquote(name): checks[8 * place : 8 * place + 8] for place, name in enumerate(names)}


def _canonical(value: Any) -> bytes:
    """Return a value; a leading NUL, which text hardly has, keeps ``1`` and ``"1"`` apart."""
    if value.__class__ is str:
        return bytes(value, "utf-8", "surrogatepass")
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
