"""Effects in doubt as a person is asked about them in the Airflow UI, and what that person answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow_guard.core.alerts.markup import escaped_markdown as md
from airflow_guard.core.decisions import MAX_REASON_CHARACTERS, Decision
from airflow_guard.core.texts import without_secrets

if TYPE_CHECKING:
    from datetime import date, datetime

    from airflow_guard.core.documents import Document
    from airflow_guard.core.guard import LedgerRow
    from airflow_guard.core.keys import KeySpace


# -- Effects in doubt as a person is asked about them, and what that person answers --------------------------

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


# -- The questions that a person answers in the Airflow UI: their words, and the form that goes with them ----

SETTLE = "Settle"
LEAVE_ALL = "Leave all in doubt"
ACCEPT = "Accept the breaks"
REFUSE = "Fail"
UNKNOWN = "unknown"
_MAX_TEXT = 300
_NAMED = 3
_SHOWN_BREAKS = 20


@dataclass(frozen=True)
class Question:
    """A question as Airflow shows it.

    :param subject: one line.
    :param body: Markdown.
    :param options: buttons; the first one is meant to be pressed.
    :param fields: the form: by field ``value``, ``description`` and JSON ``schema``, as Airflow's ``Param`` has them.
    """

    subject: str
    body: str
    options: Sequence[str]
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def doubt_question(
    doubts: Sequence[Doubt],
    asked: Sequence[AskedKey],
    space: KeySpace,
    *,
    shown: Sequence[str],
    asked_at: datetime,
    until: datetime,
    redact: Callable[[str], str] = lambda text: text,
) -> Question:
    """Return the question about effects in doubt.

    :param asked: the same effects, in the same order, as they travel with the question.
    :param shown: fields of a mapping document that are shown, such as ``amount``.
    :param asked_at: now, aware.
    :param until: when the question ends, aware.
    :param redact: takes known secrets out of a text.
    """
    what = _what(space)
    names = ", ".join(doubt.name for doubt in doubts[:_NAMED])
    more = f" and {len(doubts) - _NAMED} more" if len(doubts) > _NAMED else ""
    lines = _opening(doubts, names, what, until)
    for number, doubt in enumerate(doubts, 1):
        lines.append(f"{number}. **{md(doubt.name)}**")
        lines += [f"   - {label}: {md(text)}" for label, text in _facts(doubt, shown, asked_at, redact)]
    fields = {
        key.field_name: {
            "value": Answer.LEAVE.value,
            "description": _label(doubt, shown),
            "schema": {
                "type": "string",
                "enum": [answer.value for answer in Answer],
                "title": f"{number}. {key.name}",
            },
        }
        for number, (doubt, key) in enumerate(zip(doubts, asked, strict=True), 1)
    }
    return Question(
        f"In doubt: {names}{more} ({what})",
        "\n".join(lines),
        (SETTLE, LEAVE_ALL),
        {
            **fields,
            REASON: _reason("What you found, and where: for the person who reads the ledger next year."),
        },
    )


def _opening(doubts: Sequence[Doubt], names: str, what: str, until: datetime) -> list[str]:
    """Return what is asked, and what each answer does: whoever reads it may just have been woken."""
    kind = "documents" if all(doubt.row.batch_id is None for doubt in doubts) else "effects"
    count = names if len(doubts) == 1 else f"{len(doubts)} {kind}"
    asked = (
        f"**It is not known whether it happened: {md(count)} ({md(what)}).** Ask the receiver about each idempotency "
        f"key. Then say below what you found, and how you know, and press **{SETTLE}**."
    )
    return [
        asked,
        "",
        "- **happened**: it is never executed again.",
        "- **did not happen**: this task executes it now. If it did happen after all, it happens twice.",
        "- **leave**: it stays in doubt, and the task fails. Nothing is lost. Choose this when you are not sure.",
        "",
        f"The question is open until {_instant(until)}. Then all stays in doubt, and the task fails.",
        "",
    ]


def break_question(
    what: str,
    reasons: Sequence[str],
    breaks: Sequence[str],
    *,
    until: datetime,
    ledger_command: str,
    name: str,
) -> Question:
    """Return the question about breaks.

    :param what: operation and date.
    :param reasons: what differs, a text for each date.
    :param breaks: all that would be accepted, each in words.
    :param ledger_command: the command line that lists them.
    :param name: of exactly these breaks; the last line.
    """
    count = f"{len(breaks):,} break{'' if len(breaks) == 1 else 's'}"
    lines = [
        f"**Source and target of {md(what)} differ: {count}.** Say why below, whichever button you press.",
        "",
        f"- **{ACCEPT}**: all of them are right as they are. The task succeeds.",
        f"- **{REFUSE}**: the task fails, and they stay open. Nothing is lost. Press this when you are not sure.",
        *(f"\n{md(_without_list(reason))}" for reason in reasons),
        "",
        "What differs, as source / target (target minus source):",
        "",
        *(f"- {md(each)}" for each in breaks[:_SHOWN_BREAKS]),
    ]
    if len(breaks) > _SHOWN_BREAKS:
        lines.append(f"- … and {len(breaks) - _SHOWN_BREAKS:,} more: `{ledger_command}`")
    lines += [
        "",
        f"The question is open until {_instant(until)}. Then the task fails, and they stay open.",
        "",
        name,
    ]
    why = _reason("Why they are right as they are: for the person who reads the ledger next year.")
    return Question(f"{count}: {what}", "\n".join(lines), (ACCEPT, REFUSE), {REASON: why})


def _facts(
    doubt: Doubt, shown: Sequence[str], asked_at: datetime, redact: Callable[[str], str]
) -> list[tuple[str, str]]:
    row = doubt.row
    began = row.first_begun_age_s
    key = ("batch id", row.batch_id) if row.batch_id is not None else ("idempotency key", row.idempotency_key)
    facts = [
        *_contents(doubt, shown),
        key,
        ("what went wrong", _short(without_secrets(redact(row.error))) if row.error else UNKNOWN),
        ("verify", _short(without_secrets(redact(doubt.verify)))),
        ("begun", _instant(asked_at - timedelta(seconds=began)) if began is not None else UNKNOWN),
        ("last sign of life", _instant(asked_at - timedelta(seconds=row.last_sign_age_s))),
        ("by", f"attempt {row.attempt}, {row.done_by}"),
        ("key in the ledger", row.key_hash),
    ]
    return [(label, text or UNKNOWN) for label, text in facts]


def _contents(doubt: Doubt, shown: Sequence[str]) -> list[tuple[str, str]]:
    """Return what a document is about. A field that it does not have is unknown, if nothing else is known of it."""
    if doubt.row.batch_id is not None:
        names = [str(document.name) for document in doubt.documents]
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        return [("documents", ", ".join(names[:_NAMED]) + more)]
    payload = doubt.documents[0].payload
    found = {name: payload[name] for name in shown if name in payload} if isinstance(payload, Mapping) else {}
    first = {shown[0]: UNKNOWN} if shown and not found else {}
    return [(name, _short(str(value))) for name, value in {**found, **first}.items()]


def _label(doubt: Doubt, shown: Sequence[str]) -> str:
    """Return what stands beside the field of the form."""
    about = ", ".join(f"{name} {text}" for name, text in _contents(doubt, shown))
    return f"{about}; attempt {doubt.row.attempt}" if about else f"attempt {doubt.row.attempt}"


def _reason(description: str) -> dict[str, Any]:
    schema = {
        "type": "string",
        "title": "Reason",
        "minLength": 1,
        "maxLength": MAX_REASON_CHARACTERS,
        "format": "multiline",
    }
    return {"value": "", "description": description, "schema": schema}


def _what(space: KeySpace) -> str:
    cycle = f", cycle {space.cycle}" if space.cycle else ""
    return f"{space.key_namespace} / {space.operation} of {_day(space.business_date)}{cycle}"


def _day(day: date) -> str:
    return day.isoformat()


def _without_list(reason: str) -> str:
    """Return why two sides do not agree without the breaks that it names: they stand below it, all of them."""
    return "\n".join(line for line in reason.splitlines() if not line.startswith("- "))


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _MAX_TEXT else f"{flat[:_MAX_TEXT]}…"
