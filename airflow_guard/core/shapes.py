"""The shape of a task's keys: everything that decides what the key of a document is, but no value of a run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from airflow_guard.core.keys import NORMALISER_VERSION

if TYPE_CHECKING:
    from airflow_guard.core.keys import KeySpace

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
        return "/".join([
            self.names, self.once_per, self.cycle, self.what, self.document_key, self.call_per, str(self.normaliser),
            self.business_date,
        ])  # fmt: skip

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
            _names(space), self.once_per, self.cycle, self.what, self.document_key, self.call_per, self.normaliser,
            self.business_date,
        )  # fmt: skip

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
