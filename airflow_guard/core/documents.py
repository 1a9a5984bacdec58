"""Documents as they enter a task: an id and, for mappings, a payload."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_guard.core.content import changed_fields, fingerprint
from airflow_guard.core.errors import ConfigurationError, DocumentError, DuplicateDocumentError

if TYPE_CHECKING:
    from airflow_guard.core.keys import KeyHasher

BYTE_ORDER_MARK = "\ufeff"
BYTE_ORDER_MARKS = (BYTE_ORDER_MARK, "\ufffe", "\u00ef\u00bb\u00bf", "\u00fe\u00ff", "\u00ff\u00fe")
"""The same as a reader sees it who took the file for another encoding: Latin-1, or the other byte order."""
"""What many programs put before the first character of a UTF-8 file, so before the name of its first column."""

AFTER_A_FINER_IDENTITY = (
    "With a finer one, the next try says that the coarse one is not listed any more: drop that."
)


@dataclass(slots=True)
class Document:
    """One document of a task.

    :param name: the normalised id; ``None``: the run as a whole.
    :param payload: what the callable gets as ``payload``: the mapping, or the id itself.
    :param key_hash: see :class:`~airflow_guard.core.keys.KeyHasher`.
    :param hasher: what made the key.
    :param fingerprint: of a mapping's content, else ``None``.
    :param identity: the id as it was listed: an older normaliser may have read it otherwise.
    :param position: its place in the listing.
    """

    name: str | None
    payload: Any
    key_hash: str
    hasher: KeyHasher
    fingerprint: str | None = None
    identity: Any = None
    position: int = 0

    @property
    def idempotency_key(self) -> str:
        """The key for the receiver at a first claim; from then on the ledger's stored one counts."""
        return self.hasher.idempotency_key(self.key_hash)


class DocumentReader:
    """Turns what a ``documents`` callable yields into :class:`Document` objects, chunk by chunk.

    :param hasher: of the task's key space.
    :param document_key: the field of a mapping that names its identity.
    :param fingerprint_fields: see :func:`~airflow_guard.core.content.fingerprint`.
    """

    def __init__(
        self,
        hasher: KeyHasher,
        document_key: str | None = None,
        fingerprint_fields: Sequence[str] | None = None,
    ) -> None:
        self._hasher = hasher
        self._document_key = document_key
        self._fields = fingerprint_fields

    def read_one(self, item: Any) -> Document:
        """Return one document.

        :raises DocumentError: it cannot be a key; nothing was claimed for it.
        """
        hasher = self._hasher
        if item.__class__ is str:  # the usual case first: an isinstance check against an ABC is slow
            name = hasher.normalise(item)
            return Document(name, name, hasher.key_hash(name), hasher, None, item)
        if isinstance(item, Mapping):
            identity = self._identity(item)
            try:
                content = fingerprint(item, self._fields, self._document_key)
            except DocumentError as error:
                raise DocumentError(f"Document {self.called(item)}: {error}{_beyond_header(item)}") from error
        else:
            identity, content = item, None
        try:
            name = hasher.normalise(identity)
        except DocumentError:
            if identity is not item or self._document_key is None or isinstance(item, str):
                raise
            raise DocumentError(
                f"With document_key={self._document_key!r} a document is a mapping, not {type(item).__name__} "
                f"({reprlib.repr(item):.80}). Convert it where the documents are listed: dict(row), row._mapping of "
                "SQLAlchemy, dataclasses.asdict(…)."
            ) from None
        key_hash = hasher.key_hash(name)
        payload = item if content is not None else name
        return Document(name, payload, key_hash, hasher, content, identity)

    def called(self, item: Any) -> str:
        """Return how to call an item that cannot be a document. A foreign object may not even have a ``repr()``."""
        if isinstance(item, Mapping) and self._document_key in item:
            item = item[self._document_key]
        return f"{reprlib.repr(item):.80}"

    def key_of(self, item: Any) -> str | None:
        """Return the key that an item would have, were it only for its identity; ``None``: it has none."""
        try:
            identity = self._identity(item) if isinstance(item, Mapping) else item
            return self._hasher.key_hash(self._hasher.normalise(identity))
        except (DocumentError, ConfigurationError):
            return None

    def whole_run(self) -> Document:
        """Return the document that stands for the run as a whole."""
        key_hash = self._hasher.key_hash(None)
        return Document(None, None, key_hash, self._hasher)

    def chunks(
        self, items: Iterable[Any], size: int, refuse: Callable[[Any, DocumentError], None]
    ) -> Iterator[list[Document]]:
        """Yield lists of at most ``size`` documents, read lazily.

        :param refuse: called with each item that cannot be a key, and why; the others go on.

        :raises ConfigurationError: ``items`` is not a list or generator, or ``document_key`` is missing.
        """
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise ConfigurationError(
                f"documents gave {type(items).__name__}, not a list or generator of documents. Use document=… for "
                "one document."
            )
        iterator, position = iter(items), 0
        while items_read := list(islice(iterator, size)):
            chunk = []
            for item in items_read:
                try:
                    document = self.read_one(item)
                    document.position = position = position + 1
                    chunk.append(document)
                except DocumentError as error:
                    refuse(item, error)
            if chunk:
                yield chunk

    def _identity(self, item: Mapping[str, Any]) -> Any:
        if self._document_key is None:
            raise ConfigurationError(
                "A document is a mapping, and document_key does not say which of its fields is the identity "
                f"(fields: {', '.join(map(str, list(item)[:12]))}). Set document_key=…"
            )
        try:
            return item[self._document_key]
        except KeyError:
            raise DocumentError(
                f"A document has no field {self._document_key!r} (document_key); it has "
                f"{', '.join(map(str, list(item)[:12]))}.{_marked(item)}"
            ) from None


def _marked(names: Iterable[object]) -> str:
    """Return what to do about a byte order mark before a field's name, which nobody sees."""
    marked = next(
        (each for each in names if isinstance(each, str) and each.startswith(BYTE_ORDER_MARKS)), None
    )
    if marked is None:
        return ""
    return (
        f" The name {marked!r} begins with a byte order mark, which belongs to the file: open it with "
        'encoding="utf-8-sig".'
    )


def _beyond_header(item: Mapping[Any, Any]) -> str:
    """Return what to do about cells without a name, which ``csv.DictReader`` puts under ``None``."""
    if None not in item:
        return ""
    return (
        " Its line has more cells than the header has names: correct the file, or name the last column "
        'with csv.DictReader(…, restkey="rest").'
    )


@dataclass(frozen=True)
class Repetitions:
    """A chunk with its documents once each.

    :param unique: every document once; conflicting ones left out.
    :param repeated: further mentions with the same content: they replay what the first one gives.
    :param conflicting: documents listed with different content, with an error for each: it is not clear which
        is meant, so none of them may be claimed.
    """

    unique: list[Document]
    repeated: list[Document]
    conflicting: list[tuple[Document, DuplicateDocumentError]]


def without_repetitions(chunk: list[Document]) -> Repetitions:
    """Split a chunk into documents once each, harmless repetitions and contradictions."""
    if len({document.key_hash for document in chunk}) == len(chunk):
        return Repetitions(chunk, [], [])
    mentions: dict[str, list[Document]] = {}
    for document in chunk:
        mentions.setdefault(document.key_hash, []).append(document)
    found = Repetitions([], [], [])
    for first, *more in mentions.values():
        if not more:
            found.unique.append(first)
        elif all(_same_content(first, document) for document in more):
            found.unique.append(first)
            found.repeated.extend(more)
        else:
            error = _contradiction(first, more)
            found.conflicting.extend((document, error) for document in (first, *more))
    return found


def _same_content(first: Document, second: Document) -> bool:
    both_or_neither = (first.fingerprint is None) == (second.fingerprint is None)
    return both_or_neither and changed_fields(first.fingerprint, second.fingerprint) is None


def _contradiction(first: Document, more: Iterable[Document]) -> DuplicateDocumentError:
    fields = {field for each in more for field in changed_fields(first.fingerprint, each.fingerprint) or ()}
    return DuplicateDocumentError(
        f"Document {first.name!r} is listed several times with different content"
        f"{' in ' + ', '.join(sorted(fields)) if fields else ''}. All its mentions are held back, nothing was "
        "claimed: correct the list, or make the identity (document_key) finer. "
        f"{AFTER_A_FINER_IDENTITY}"
    )
