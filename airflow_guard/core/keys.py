"""The key of one effect: what it is made of, how a document is normalised, how it is hashed.

Key parts are ``key_namespace``, ``operation``, the business date (unless ``once_per="document"``), ``cycle``
and the document. Run id, try number, map index, host and code version are never part of it.
"""

from __future__ import annotations

import hashlib
import reprlib
import unicodedata
import uuid
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from airflow_guard.core.content import NoForm, plain
from airflow_guard.core.errors import ConfigurationError, DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


NORMALISER_VERSION = 1
MAX_DOCUMENT_LENGTH = 255
MAX_NAME_LENGTH = 250
MAX_CYCLE_LENGTH = 100
DATELESS = date(1900, 1, 1)
"""``key_date`` of keys that hold once per document, whatever the date: a fixed date, so that the ledger's
primary key and partitions stay ``(key_date, key_hash)`` for every key."""

_KEY_HEX = 32
# Code points of Default_Ignorable_Code_Point (Unicode DerivedCoreProperties) that are not in category Cf:
# invisible like zero-width spaces, so two ids that look alike would be two keys.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0") | frozenset(
    map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
)
_REFUSED_CATEGORIES = {
    "Cc": "a control",
    "Cf": "an invisible",
    "Cs": "a surrogate",
    "Zl": "a line-break",
    "Zp": "a line-break",
}


def normalise_document(value: object) -> str:
    """Return the form of a document id that decides what is equal (version 1).

    Unicode NFC, surrounding white space stripped; case and inner white space are significant. ``int`` and
    ``UUID`` are taken in their usual text form, an enum's member and a scalar of numpy as the value that it is.

    :param value: ``str``, ``int`` or ``uuid.UUID``.
    :raises DocumentError: empty, over 255 characters, a control or invisible character, or another type.
        A retry does not help.
    """
    if type(value) is not str:
        value = _plain(value)
    if isinstance(value, str):
        text = str.strip(value)
        if text.isascii():
            if text and len(text) <= MAX_DOCUMENT_LENGTH and text.isprintable():
                return text
        else:
            text = unicodedata.normalize("NFC", text).strip()
    elif isinstance(value, int) and not isinstance(value, bool):
        text = int.__repr__(value)
    elif isinstance(value, uuid.UUID):
        text = uuid.UUID.__str__(value)
    else:
        raise DocumentError(
            f"A document must be str, int or UUID, not {type(value).__name__} ({reprlib.repr(value):.80}). Convert it "
            "where the documents are listed; a float or None is not an identity."
        )
    _refuse(text, value)
    return text


def cycle_text(value: object) -> str:
    """Return a settlement cycle as it is in the key: a text, or a whole number in digits; ``None`` is no cycle.

    :raises ConfigurationError: it is something else. What ``str()`` makes of an object is no part of a key.
    """
    given = "" if value is None else value if type(value) is str else _plain(value)
    if isinstance(given, str):
        return str.__str__(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return int.__repr__(given)
    raise ConfigurationError(
        f"cycle is a {type(value).__name__} ({reprlib.repr(value):.80}). It is part of the key: give a text or a whole "
        "number."
    )


def _plain(value: object) -> object:
    try:
        return plain(value)
    except NoForm:
        return value


def _refuse(text: str, value: object) -> None:
    if not text:
        raise DocumentError(f"A document id is empty ({value!r:.80}). Every document needs an identity.")
    if len(text) > MAX_DOCUMENT_LENGTH:
        raise DocumentError(
            f"A document id has {len(text)} characters, more than {MAX_DOCUMENT_LENGTH}: {text[:60]!r}…. "
            "Use a shorter identity, or a digest of it."
        )
    for position, character in enumerate(text):
        kind = _REFUSED_CATEGORIES.get(unicodedata.category(character))
        if kind or character in _INVISIBLE:
            raise DocumentError(
                f"Document {value!r:.80} holds {kind or 'an invisible'} character (U+{ord(character):04X}) at "
                f"position {position}: it would look like another document. Remove it where the documents are "
                "listed."
            )


NORMALISERS: Mapping[int, Callable[[object], str]] = {1: normalise_document}
"""Every normaliser that ever made a key, by version. A row made by an older one is found under its old key."""


@dataclass(frozen=True)
class KeySpace:
    """All key parts but the document: what the keys of one task try have in common.

    :param key_namespace: by default the ``dag_id``; 1 to 250 characters.
    :param operation: by default the ``task_id``; 1 to 250 characters.
    :param business_date: the resolved business date.
    :param cycle: settlement cycle within the date, ``""`` for none; at most 100 characters.
    :param once_per: ``"date"``: once per business date (and cycle) and document; ``"document"``: once per
        document, whatever the date.
    :param deployment: name of the Airflow deployment; part of the idempotency key only.
    :raises ConfigurationError: a part is empty, too long, of another type or holds a control character.
    """

    key_namespace: str
    operation: str
    business_date: date
    cycle: str = ""
    once_per: str = "date"
    deployment: str = "default"

    def __post_init__(self) -> None:
        _check_part("key_namespace", self.key_namespace, MAX_NAME_LENGTH)
        _check_part("operation", self.operation, MAX_NAME_LENGTH)
        _check_part("deployment", self.deployment, MAX_NAME_LENGTH)
        if self.cycle:
            _check_part("cycle", self.cycle, MAX_CYCLE_LENGTH)
        given: object = self.business_date
        if not isinstance(given, date) or isinstance(given, datetime):
            # An instant's text is longer than its date's, so it would silently make another key.
            raise ConfigurationError(
                f"business_date={self.business_date!r} is not a date. It is part of the key."
            )
        if self.once_per not in ("date", "document"):
            raise ConfigurationError(f'once_per={self.once_per!r}: use "date" or "document".')
        if self.once_per == "date" and self.business_date == DATELESS:
            raise ConfigurationError(f"business_date={DATELESS} stands for keys without a date.")
        if self.once_per == "document" and self.cycle:
            raise ConfigurationError(
                'once_per="document" holds whatever the date and cycle: leave out cycle, or use once_per="date".'
            )

    @property
    def key_date(self) -> date:
        """The date part of the ledger's primary key."""
        return DATELESS if self.once_per == "document" else self.business_date

    def hasher(self, normaliser: int = NORMALISER_VERSION) -> KeyHasher:
        """Return what hashes documents of this space, its common parts hashed once."""
        return KeyHasher(self, normaliser)

    def describe(self, document: str | None) -> str:
        """Return the key as a person reads it in a message."""
        parts = [self.key_namespace, self.operation]
        parts.append("any date" if self.once_per == "document" else self.business_date.isoformat())
        if self.cycle:
            parts.append(f"cycle {self.cycle}")
        parts.append(document if document is not None else "(whole run)")
        return " / ".join(parts)


class KeyHasher:
    """Hashes the documents of one :class:`KeySpace`.

    ``key_hash`` is the first 128 bits of SHA-256 over the length-prefixed UTF-8 parts, so that neighbouring
    parts cannot run into each other; ``idempotency_key`` adds the deployment and the generation, so that a
    test deployment with the same key does not use up production's key at the receiver.
    """

    __slots__ = ("_deployment", "_prefix", "normalise")

    def __init__(self, space: KeySpace, normaliser: int = NORMALISER_VERSION) -> None:
        parts = [space.key_namespace, space.operation, space.key_date.isoformat(), space.cycle]
        self._prefix = hashlib.sha256(b"".join(_prefixed(part) for part in parts))
        self._deployment = space.deployment.encode()
        self.normalise = NORMALISERS[normaliser]

    def key_hash(self, document: str | None) -> str:
        """Return the 32 lower-case hex characters for a normalised document (``None``: the whole run)."""
        digest = self._prefix.copy()
        digest.update(b"-" if document is None else _prefixed(document))
        return digest.hexdigest()[:_KEY_HEX]

    def idempotency_key(self, key_hash: str, generation: int = 1, content: str | None = None) -> str:
        """Return the key that the receiver gets at the first claim of a generation.

        :param content: the content that it travels with, where an earlier key of the generation may have reached the
            receiver with another; see :func:`~airflow_guard.core.content.content_id`.
        """
        text = b"%b/%d/%b" % (key_hash.encode(), generation, self._deployment)
        if content is not None:
            text += b"/" + content.encode()
        return hashlib.sha256(text).hexdigest()[:_KEY_HEX]


def reversal_key(idempotency_key: str) -> str:
    """Return the key under which the receiver gets the reversal of an effect before its second execution.

    :param idempotency_key: of the second execution (of its batch: the ``batch_id``).
    """
    return hashlib.sha256(b"reversal/" + idempotency_key.encode()).hexdigest()[:_KEY_HEX]


def batch_id_of(idempotency_keys: Iterable[str]) -> str:
    """Return the id of a batch: 32 hex characters that depend on nothing but its members.

    The same documents give the same id again, so that a batch that is repeated carries the id that the
    receiver may already know.
    """
    return hashlib.sha256("\n".join(sorted(idempotency_keys)).encode()).hexdigest()[:_KEY_HEX]


def _prefixed(part: str) -> bytes:
    data = part.encode()
    return b"%d:%b" % (len(data), data)


def _check_part(name: str, value: object, limit: int) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name}={value!r} is empty or not a text. It is part of the key.")
    if value != value.strip() or unicodedata.normalize("NFC", value) != value:
        raise ConfigurationError(f"{name}={value!r} has surrounding white space or is not Unicode NFC.")
    if len(value) > limit:
        raise ConfigurationError(f"{name} has {len(value)} characters, more than {limit}: {value[:60]!r}…")
    if not value.isprintable():
        raise ConfigurationError(f"{name}={value!r} holds a control or invisible character.")


# -- The shape of a task's keys: everything that decides what the key of a document is, but no value of a run --

_FIELDS = 8
_NO_FIELD = "-"
_DIGESTED = "~"
_MAX_FIELD, _MAX_RULE = 60, 110


@dataclass(frozen=True)
class KeyShape:
    """See the module; ``text`` is what the ledger stores.

    :param names: digest of key namespace and operation.
    :param once_per: ``"date"`` or ``"document"``.
    :param cycle: ``"cycle"`` of the task, ``"partition"`` of the run, or ``"-"``.
    :param what: ``"documents"``, or ``"whole"``: the run as a whole.
    :param document_key: as it is stored: quoted, or a digest of it.
    :param call_per: one call for a document, or for a batch.
    :param normaliser: the version.
    :param business_date: how a run is dated, as it is stored.
    """

    names: str
    once_per: str
    cycle: str
    what: str
    document_key: str = _NO_FIELD
    call_per: str = "document"
    normaliser: int = NORMALISER_VERSION
    business_date: str = _NO_FIELD

    @staticmethod
    def of(
        space: KeySpace,
        *,
        documents: bool,
        document_key: str | None = None,
        call_per: str = "document",
        business_date: str = "",
        partition: bool = False,
    ) -> KeyShape:
        """Return the shape of a task's keys.

        :param documents: whether the task names documents, or stands for the run as a whole.
        :param document_key: the field that is the identity of a mapping.
        :param business_date: the rule that dates a run, in words that are the same in every process.
        :param partition: whether the cycle, if there is one, is the run's partition.
        """
        return KeyShape(
            names=_names(space),
            once_per=space.once_per,
            cycle="partition" if partition else "cycle" if space.cycle else _NO_FIELD,
            what="documents" if documents else "whole",
            document_key=_stored(document_key or "", _MAX_FIELD),
            call_per=call_per,
            business_date=_stored(business_date, _MAX_RULE),
        )

    @staticmethod
    def parse(text: str) -> KeyShape | None:
        """Return the shape that ``text`` was written for, ``None`` if it is none."""
        parts = text.split("/")
        if len(parts) != _FIELDS or not parts[6].isdigit():
            return None
        names, once_per, cycle, what, document_key, call_per, normaliser, business_date = parts
        return KeyShape(names, once_per, cycle, what, document_key, call_per, int(normaliser), business_date)

    @property
    def text(self) -> str:
        """What is stored, at most 250 characters."""
        return "/".join(
            [
                self.names,
                self.once_per,
                self.cycle,
                self.what,
                self.document_key,
                self.call_per,
                str(self.normaliser),
                self.business_date,
            ]
        )

    @property
    def field(self) -> str | None:
        """``document_key``, ``None`` if there was none or if it was too long to be stored."""
        known = self.document_key != _NO_FIELD and not self.document_key.startswith(_DIGESTED)
        return unquote(self.document_key) if known else None

    @property
    def whole(self) -> bool:
        """Whether the task stands for the run as a whole."""
        return self.what == "whole"

    def same_keys(self, other: KeyShape) -> bool:
        """Return whether a document that is listed on one date has one key under both.

        The calls that documents share, and the rule that gave the date, change nothing about that; and of a key that
        an older normaliser made, the newer one knows.
        """
        return self.same_names_and_scope(other) and self.document_key == other.document_key

    def same_names_and_scope(self, other: KeyShape) -> bool:
        """Return whether two shapes differ in nothing but in how a document is identified."""
        mine = (self.names, self.once_per, self.cycle, self.what)
        return mine == (other.names, other.once_per, other.cycle, other.what)

    def renamed(self, space: KeySpace) -> KeyShape:
        """Return the shape under the names that the ledger has now."""
        return KeyShape(
            _names(space),
            self.once_per,
            self.cycle,
            self.what,
            self.document_key,
            self.call_per,
            self.normaliser,
            self.business_date,
        )

    def describe(self) -> str:
        """Return what a person can compare."""
        parts = [f"once per {self.once_per}", "the run as a whole" if self.whole else "documents"]
        parts += [] if self.cycle == _NO_FIELD else [f"a {self.cycle}"]
        return ", ".join(parts)


def _names(space: KeySpace) -> str:
    names = f"{len(space.key_namespace)}:{space.key_namespace}{space.operation}"
    return hashlib.sha256(names.encode()).hexdigest()[:16]


def _stored(text: str, limit: int) -> str:
    quoted = quote(text, safe="") or _NO_FIELD
    if len(quoted) > limit or text == _NO_FIELD or text.startswith(_DIGESTED):
        return _DIGESTED + hashlib.sha256(text.encode()).hexdigest()[:16]
    return quoted
