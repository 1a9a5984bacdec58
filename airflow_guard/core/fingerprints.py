"""The fingerprint of a document's content: tells "the same again" from "changed since", and which fields.

Written ``<digest> <all|some> <checks> <field> …``: the 128-bit digest is of all the fields; the checks, 16 characters a
field, decide where two fingerprints are of other fields, and name those that changed.
"""

from __future__ import annotations

from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, unquote

from airflow_guard.core.canonical import NoForm, canonical, framed
from airflow_guard.core.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CHECK = 16
"""Hex characters of a field's check. It decides once fields were left out, so that chance must not: 64 bits."""
_ALL, _SOME = "all", "some"


def fingerprint(
    payload: Mapping[str, Any], fields: Sequence[str] | None = None, identity: str | None = None
) -> str:
    """Return the fingerprint of a mapping document.

    :param payload: the document; each value is taken in its canonical form, see
        :func:`~airflow_guard.core.canonical.canonical`.
    :param fields: only these fields decide (``fingerprint_fields``), in any order; ``None``: all.
    :param identity: the field that names the document; left out, since the key holds it in the form that decides
        what is equal (``"INV-1 "`` and ``"INV-1"`` are one document, not changed content).
    :raises DocumentError: a field of ``fields`` is missing in the payload, a name is no text, or a value has no
        canonical form: the message names the field. A retry does not help.
    """
    given = tuple(payload if fields is None else fields)
    try:
        shape = _shapes.get((given, identity)) or _shape(given, identity)
        parts = [
            b"s" + value.encode("utf-8", "surrogatepass") if type(value) is str else canonical(value)
            for value in shape.values_of(payload)
        ]
    except KeyError as error:
        raise DocumentError(
            f"fingerprint_fields names {error.args[0]!r}, which the document does not have."
        ) from None
    except (NoForm, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _without_form(payload, given, identity, error) from error
    digest = blake2b(shape.prefix + framed(parts), digest_size=16).hexdigest()
    checks = "".join([blake2b(part, digest_size=_CHECK // 2).hexdigest() for part in parts])
    return f"{digest} {_ALL if fields is None else _SOME} {checks}{shape.names}"


def changed_fields(stored: str | None, current: str | None) -> list[str] | None:
    """Return the names of the fields that differ, ``None`` if the content is the same.

    Fields that both have are compared. One that only one has is a change if the other is of all fields of its document;
    where ``fingerprint_fields`` had left it out, nothing is known of it there, and it decides nothing.

    An empty list means that nothing could be compared: the two have no field in common. A row without a fingerprint
    (adopted history) is never "changed": there is nothing to compare with.
    """
    if not stored or not current or stored[:32] == current[:32]:
        return None
    before, after = _read(stored), _read(current)
    common = before.checks.keys() & after.checks.keys()
    changed = {name for name in common if before.checks[name] != after.checks[name]}
    if after.complete:
        changed |= before.checks.keys() - common
    if before.complete:
        changed |= after.checks.keys() - common
    if changed:
        return sorted(changed)
    same = bool(common) and before.checks.keys() != after.checks.keys()
    return None if same or not before.checks or not after.checks else []


def content_id(print_: str | None) -> str | None:
    """Return the 32 hex characters that stand for a content: what a person accepts, or a receiver's key is made of."""
    return print_[:32] if print_ else None


def fields_of(print_: str | None) -> list[str]:
    """Return the names of the fields that a fingerprint is of."""
    return sorted(_read(print_).checks) if print_ else []


class _Read(NamedTuple):
    complete: bool
    checks: dict[str, str]


def _read(text: str) -> _Read:
    _, mode, checks, *names = text.split(" ")
    places = range(0, len(checks), _CHECK)
    return _Read(
        mode == _ALL, {unquote(n): checks[p : p + _CHECK] for n, p in zip(names, places, strict=True)}
    )


class _Shape:
    """What documents with the same field names have in common, made once: a batch has one or two shapes."""

    __slots__ = ("names", "prefix", "values_of")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = "".join(" " + quote(name, safe="") for name in names)
        self.prefix = f"{len(names)}{self.names}\0".encode()
        if len(names) > 1:
            self.values_of: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*names)
        else:
            self.values_of = lambda payload: tuple(payload[name] for name in names)


_shapes: dict[tuple[tuple[str, ...], str | None], _Shape] = {}


def _shape(given: tuple[str, ...], identity: str | None) -> _Shape:
    if len(_shapes) > 1000:
        _shapes.clear()
    odd = [name for name in cast("Sequence[object]", given) if not isinstance(name, str)]
    if odd:
        raise TypeError(f"field name {odd[0]!r} is not text")
    names = tuple(sorted({str.__str__(name) for name in given if name != identity}))
    return _shapes.setdefault((given, identity), _Shape(names))


def _without_form(
    payload: Mapping[str, Any], given: Sequence[object], identity: str | None, error: Exception
) -> DocumentError:
    """Return the error for a document that cannot be compared. Looks for the field only now: hardly one has it."""
    for name in given:
        if not isinstance(name, str) or name == identity:
            continue
        try:
            canonical(payload[name])
        except NoForm as problem:
            why = f"Field {problem.path(name)!r} holds a {problem.kind}"
        except (TypeError, ValueError, OverflowError, RecursionError) as problem:
            why = f"Field {name!r} holds a {type(payload[name]).__name__} that cannot be written down ({problem})"
        else:
            continue
        return DocumentError(
            f"{why}, so nobody could tell whether the content has changed. Name in fingerprint_fields the fields that "
            "decide, without this one, or list a field of plain values instead (text, numbers, dates, bytes, and lists "
            "and mappings of them)."
        )
    return DocumentError(
        f"The content of a document cannot be compared ({error}). Give text as names of its fields."
    )
