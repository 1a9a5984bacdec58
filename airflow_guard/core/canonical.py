"""Values in one canonical form, by their type: what a document holds, and nothing that only looks like it.

``str()`` and ``repr()`` of an object decide nothing: that of a long array leaves its middle out, that of a plain object
is its address. A value whose type has no form here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

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
