"""Values in one canonical form, by their type: what a document holds, and nothing that only looks like it.

``str()`` and ``repr()`` of an object decide nothing: that of a long array leaves its middle out, that of a plain object
is its address. A value whose type has no form here is refused.

Written ``<digest> <all|some> <checks> <field> …``: the 128-bit digest is of all the fields; the checks, 16 characters a
field, decide where two fingerprints are of other fields, and name those that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast
from urllib.parse import quote, unquote
from uuid import UUID

from airflow_guard.core.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Sequence


Form: TypeAlias = Callable[[Any], bytes]
_MISSING = b"0"
_US = timedelta(microseconds=1)


class NoForm(Exception):
    """A value has no canonical form.

    :param kind: its type, as a person reads it.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
        self._steps: list[str] = []

    def inside(self, step: str) -> None:
        """Note where in its container the value is."""
        self._steps.insert(0, step)

    def path(self, field: str) -> str:
        """Return where the value is in a document, such as ``lines[3].amount``."""
        return field + "".join(self._steps)


def canonical(value: object) -> bytes:
    """Return the form that decides whether two values are the same content.

    A leading letter tells the type: ``1`` and ``"1"`` differ. Numbers are one type: ``1``, ``1.0`` and
    ``Decimal("1.00")`` are equal, a float counts as the shortest decimal that reads back as it, zero has no sign, and
    every NaN is one value. ``True`` is no number. An aware datetime is its instant, whatever its zone; a naive one is no
    instant. An enum's member is its value. A list and a tuple are one, as JSON has them.

    :raises NoForm: the type has none: an array, a frame, a generator, an object.
    :raises ValueError: a number or an instant outside of what Python can write down.
    :raises RecursionError: the value contains itself, or is nested too deeply.
    """
    kind: Any = type(value)
    return (_FORMS.get(kind) or _form_of(kind))(value)


def plain(value: object) -> object:
    """Return the value that an enum's member or a scalar of numpy stands for, anything else as it is."""
    if isinstance(value, Enum):
        return plain(value.value)
    if not isinstance(value, (str, int, float)) and ("numpy", "generic") in _names(type(value)):
        return _item(value)
    return value


def _text(value: str) -> bytes:
    return b"s" + str.encode(value, "utf-8", "surrogatepass")


def _integer(value: int) -> bytes:
    return _number(int.__repr__(value))


def _decimal(value: Decimal) -> bytes:
    return _number(Decimal.__str__(value).lower())


def _float(value: float) -> bytes:
    return _number(float.__repr__(value))


def _number(text: str) -> bytes:
    """Return a number's digits and power of ten, without zeros at either end."""
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if not whole.isdigit():
        return b"nnan" if "nan" in whole else b"n" + mantissa[: -len(whole)].encode() + b"inf"
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return b"n0"
    exponent = int(power or 0) - len(fraction) + len(digits) - len(kept)
    return f"n{'-' if mantissa[0] == '-' else ''}{kept}e{exponent}".encode()


def _moment(value: datetime, nanoseconds: int = 0) -> bytes:
    minutes = (date.toordinal(value) * 24 + value.hour) * 60 + value.minute
    count = (minutes * 60 + value.second) * 1_000_000 + value.microsecond
    offset = value.utcoffset()
    if offset is None:
        return b"l%d" % (count * 1000 + nanoseconds)
    return b"i%d" % ((count - offset // _US) * 1000 + nanoseconds)


def _length(value: timedelta, nanoseconds: int = 0) -> bytes:
    count = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return b"p%d" % (count * 1000 + nanoseconds)


def _sequence(values: Iterable[object]) -> bytes:
    parts = []
    for place, each in enumerate(values):
        try:
            parts.append(canonical(each))
        except NoForm as problem:
            problem.inside(f"[{place}]")
            raise
    return b"[" + framed(parts)


def _mapping(values: Mapping[Any, Any]) -> bytes:
    parts = []
    for key, each in values.items():
        name = canonical(key)
        try:
            parts.append((name, canonical(each)))
        except NoForm as problem:
            problem.inside(f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]")
            raise
    return b"{" + framed(part for pair in sorted(parts) for part in pair)


def framed(parts: Iterable[bytes]) -> bytes:
    """Return parts one after the other, each with its length: neighbours cannot run into each other."""
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])


_FORMS: Mapping[type, Form] = {
    str: _text,
    int: _integer,
    bool: lambda value: b"b1" if value else b"b0",
    type(None): lambda _: _MISSING,
    Decimal: _decimal,
    float: _float,
    datetime: _moment,
    date: lambda value: b"d" + date.isoformat(value).encode(),
    time: lambda value: b"t" + time.isoformat(value).encode(),
    timedelta: _length,
    UUID: lambda value: b"u" + value.bytes,
    bytes: lambda value: b"".join((b"y", value)),
    bytearray: lambda value: b"".join((b"y", value)),
    memoryview: lambda value: b"y" + value.tobytes(),
    list: lambda value: _sequence(list.__iter__(value)),
    tuple: lambda value: _sequence(tuple.__iter__(value)),
    dict: _mapping,
    set: lambda value: b"(" + framed(sorted(map(canonical, value))),
    frozenset: lambda value: b"(" + framed(sorted(map(canonical, value))),
}
"""The form of each type; subclasses are found in this order. What a subclass makes of ``str()`` does not count."""

_LIBRARIES: Mapping[tuple[str, str], Form] = {
    ("pandas", "NaTType"): lambda _: _MISSING,
    ("pandas", "NAType"): lambda _: _MISSING,
    ("pandas", "Timestamp"): lambda value: _moment(value, value.nanosecond),
    ("pandas", "Timedelta"): lambda value: _length(value, value.nanoseconds),
}
"""Scalars of pandas, by library and name: they are told without importing it. They are finer than their base classes."""


@lru_cache(maxsize=512)
def _form_of(kind: Any) -> Form:
    names = _names(kind)
    if issubclass(kind, Enum):
        return lambda value: canonical(value.value)
    for name, form in _LIBRARIES.items():
        if name in names:
            return form
    for base, form in _FORMS.items():
        if issubclass(kind, base):
            return form
    if ("numpy", "datetime64") in names or ("numpy", "timedelta64") in names:
        return _numpy_time
    if ("numpy", "generic") in names:
        return lambda value: canonical(_item(value))
    return _mapping if issubclass(kind, Mapping) else _refuse


def _names(kind: type) -> frozenset[tuple[str, str]]:
    return frozenset((base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__)


def _item(value: Any) -> object:
    found: object = value.item()
    # A long double stays one; a complex number is none of ours.
    if type(found) is type(value) or isinstance(found, complex):
        _refuse(value)
    return found


def _numpy_time(value: Any) -> bytes:
    found = value.item()
    if type(found) is not int:
        return canonical(found)  # NaT is None
    if value.dtype.name == "datetime64[ns]":
        return _moment(datetime(1970, 1, 1) + timedelta(microseconds=found // 1000), found % 1000)  # noqa: DTZ001
    if value.dtype.name != "timedelta64[ns]":
        _refuse(value)  # years, months and picoseconds
    return b"p%d" % found


def _refuse(value: object) -> NoReturn:
    kind = type(value)
    inside = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    raise NoForm(f"{inside}{kind.__qualname__}")


# -- The fingerprint of a document's content: tells "the same again" from "changed since", and which fields --

_CHECK = 16
"""Hex characters of a field's check. It decides once fields were left out, so that chance must not: 64 bits."""
_ALL, _SOME = "all", "some"


def fingerprint(
    payload: Mapping[str, Any], fields: Sequence[str] | None = None, identity: str | None = None
) -> str:
    """Return the fingerprint of a mapping document.

    :param payload: the document; each value is taken in its canonical form, see
        :func:`~airflow_guard.core.content.canonical`.
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
