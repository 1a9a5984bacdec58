"""Effects in doubt as a person is asked about them, and what that person answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow_guard.core.decisions import MAX_REASON_CHARACTERS, Decision

if TYPE_CHECKING:
    from datetime import date

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow

MAX_ASKED = 20
"""Effects in one question. A form with more of them is filled in without looking; the command line has filters."""


class Answer(StrEnum):
    """What a person may say of one effect."""

    LEAVE = "leave"
    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did not happen"

    @property
    def decision(self) -> Decision | None:
        """What it decides, ``None`` if nothing."""
        return {Answer.HAPPENED: Decision.HAPPENED, Answer.DID_NOT_HAPPEN: Decision.DID_NOT_HAPPEN}.get(self)


@dataclass(frozen=True, slots=True)
class Doubt:
    """One effect in doubt: of a document, or of a batch.

    :param documents: the document, or the listed members of the batch.
    :param row: the (first) document's, as it was judged.
    :param verify: what ``verify`` said, in words.
    """

    documents: Sequence[Document]
    row: LedgerRow
    verify: str

    @property
    def name(self) -> str:
        """How a person calls it."""
        first = self.documents[0].name
        if self.row.batch_id is not None:
            return f"batch {self.row.batch_id} ({len(self.documents):,} documents from {first})"
        return first if first is not None else "the whole run"


@dataclass(frozen=True, slots=True)
class AskedKey:
    """One effect that a person is asked about, as it travels with the question.

    :param name: how a person calls it.
    :param owner_token: of the attempt that the question is about: an answer changes nothing once there is another.
    """

    name: str
    key_date: date
    key_hash: str
    owner_token: str

    @property
    def field_name(self) -> str:
        """The name of its field in the form.

        Airflow keeps one question for a task of a run, also over its tries, and shows the first one again. A name for
        each attempt makes sure that an answer to an old question is never taken for another document, or attempt.
        """
        return f"effect_{sha256(f'{self.key_date} {self.key_hash} {self.owner_token}'.encode()).hexdigest()[:12]}"

    def packed(self) -> list[str]:
        """Return it as JSON has it."""
        return [self.name, self.key_date.isoformat(), self.key_hash, self.owner_token]


@dataclass(frozen=True, slots=True)
class Response:
    """What came back from a person.

    :param chosen: the option.
    :param inputs: the fields of the form.
    :param user: who answered; ``None``: nobody, the time was over.
    :param problem: why it is no answer, in words.
    """

    chosen: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    user: str | None = None
    problem: str | None = None

    @staticmethod
    def of(event: Mapping[str, Any]) -> Response:
        """Return the response that Airflow reports."""
        if event.get("error"):
            timed_out = event.get("error_type") == "timeout"
            return Response(problem=None if timed_out else str(event["error"]))
        if event.get("timedout") or not event.get("responded_by_user"):
            return Response()
        chosen, inputs = event.get("chosen_options") or [""], event.get("params_input")
        given = inputs if isinstance(inputs, Mapping) else {}
        return Response(str(chosen[0]), given, _named(event["responded_by_user"]))

    @property
    def reason(self) -> str:
        """Why, as the person wrote it."""
        given = self.inputs.get(REASON)
        return given.strip() if isinstance(given, str) else ""


def reason_problem(response: Response) -> str | None:
    """Return what is wrong with the reason of an answer, ``None`` if nothing is."""
    if not response.reason:
        return "a reason is missing"
    if len(response.reason) > MAX_REASON_CHARACTERS:
        return f"a reason may have {MAX_REASON_CHARACTERS} characters, this one has {len(response.reason)}"
    return None


REASON = "reason"
"""The field of the form that says why."""


def _named(user: Any) -> str:
    """Return a user as the ledger records it: the name, and the id where that is another word."""
    known = user if isinstance(user, Mapping) else vars(user)
    name, number = (str(known.get(part) or "").strip() for part in ("name", "id"))
    if not name or name == number:
        return number
    return f"{name} (id {number})" if number else name
