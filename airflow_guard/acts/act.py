"""An act: one thing that a person changes, declared once for the form on the pages and for the command.

A module of this folder that has ``ACTS`` is one: who may, what is filled in, what it comes to (a dry run), what makes that
stale, how it is done, and the words for all of it. The pages have one route for all forms, the command line one runner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from airflow_guard.reading.monitor import Monitor

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import sqlalchemy as sa

    from airflow_guard.acts.arguments import Command
    from airflow_guard.acts.shown import Done, FillIn, Link, Preview, Question, Said
    from airflow_guard.core.errors import GuardError
    from airflow_guard.store.ledger import Ledger

R = TypeVar("R")
W = TypeVar("W")


class Person(Protocol):
    """Who asks at a page, and what that person may: each check returns, or raises what the pages answer with."""

    @property
    def name(self) -> str:
        """What the ledger stores as the actor."""

    @property
    def readable(self) -> frozenset[str]:
        """The DAGs that the person may read."""

    @property
    def dags(self) -> list[str]:
        """The DAGs that the person may read and edit."""

    def must_edit_some(self) -> None:
        """Refuse who may edit no DAG."""

    def must_edit(self, dag_ids: Iterable[str]) -> None:
        """Refuse who may not edit each of the DAGs."""

    def must_edit_all_of(self, dag_ids: Iterable[str]) -> None:
        """Refuse who may not edit all DAGs of operations; what no DAG of this Airflow uses is for who may edit every DAG."""

    def must_edit_everywhere(self) -> None:
        """Refuse who may not edit every DAG of this Airflow."""


@dataclass(frozen=True)
class Words:
    """Who acts, and why."""

    actor: str
    reason: str


@dataclass(frozen=True)
class Opened:
    """The ledger that an act is about.

    :param name: for the commands that messages suggest; ``None``: the configured one.
    :param deployment: of this Airflow, as far as that is known.
    :param source: the engine of another database, by connection id or URL; only for a command.
    :param limit_s: how long what is looked up may take.
    """

    ledger: Ledger
    name: str | None
    deployment: str
    source: Callable[[str | None, str | None], sa.Engine] | None = None
    limit_s: float | None = None

    def look(self) -> Monitor:
        """Return the read model."""
        return Monitor(self.ledger) if self.limit_s is None else Monitor(self.ledger, limit_s=self.limit_s)


@dataclass(frozen=True)
class Asked:
    """What a person has sent at a page.

    :param values: texts by the name of their field.
    :param confirmed: whether the preview was seen and confirmed.
    :param again: whether the confirmation came too late, and a preview shows what there is now, whatever that is.
    :param carried: what the plan gave the confirmation to carry.
    :param upload: returns a file by the name of its field; ``None``: none was chosen.
    """

    person: Person
    values: Mapping[str, Sequence[str]]
    confirmed: bool = False
    again: bool = False
    carried: Any = None
    upload: Callable[[str], bytes | None] = lambda _: None

    def text(self, name: str) -> str:
        """Return a field, the last of its name; empty if absent."""
        return (list(self.values.get(name, ())) or [""])[-1]

    def all(self, name: str) -> list[str]:
        """Return all fields of a name."""
        return list(self.values.get(name, ()))


@dataclass(frozen=True)
class Plan(Generic[W]):
    """What a dry run came to.

    :param what: as the act returns it when it is done.
    :param seen: plain values; if they are others once it is confirmed, the preview is shown anew.
    :param sure: whether it need not be what was shown: it is done already (a second click), or the act itself refuses what
        has changed.
    :param nothing: why there is nothing to do.
    :param carried: JSON values that come back with the confirmation.
    :param fields: what the confirmation sends in place of what was filled in.
    """

    what: W
    seen: Any = ""
    sure: bool = False
    nothing: str = ""
    carried: Any = None
    fields: Mapping[str, list[str]] = field(default_factory=dict)


class Late(Enum):
    """What a page does about a refusal of a plan or of an act."""

    ASK = auto()
    """The form once more, with the problem."""
    AGAIN = auto()
    """The preview of what there is now."""
    REFUSE = auto()
    """A message, with links to what there is now."""


class Act(ABC, Generic[R, W]):
    """One act. ``R`` is what is asked for, ``W`` what it comes to.

    Methods that get ``at`` may ask the ledger. An act says of a method what is its own; the rest is said here.

    :cvar path: of its form, below ``forms/``.
    :cvar fields: what its form sends, without ledger and step.
    :cvar place: where it stands among the others.
    :cvar entry: its name and what it does, in the list of what can be changed; ``None``: it is reached from a row.
    :cvar entry_path: where the list of changes leads, if not to the form.
    :cvar everywhere: whether only who may edit every DAG finds it there.
    :cvar carries: whether the plan gives the confirmation something to carry.
    :cvar changed: what is said of a plan that is not what was shown.
    :cvar command: its command, ``None`` if it is a part of another.
    :cvar asks: whether the command asks before it acts.
    :cvar not_done: what is said where nobody confirmed.
    """

    path: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]
    place: ClassVar[int] = 100
    entry: ClassVar[tuple[str, str] | None] = None
    entry_path: ClassVar[str | None] = None
    everywhere: ClassVar[bool] = False
    carries: ClassVar[bool] = False
    changed: ClassVar[str] = "The ledger has changed meanwhile."
    command: ClassVar[Command | None] = None
    asks: ClassVar[bool] = False
    not_done: ClassVar[str] = "Nothing was changed."

    @property
    def name(self) -> str:
        """What its tokens are bound to."""
        return self.path.replace("-", "_")

    # -- Who may ---------------------------------------------------------------------------------------------

    def opens(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not even see the form."""
        asked.person.must_edit_some()

    @abstractmethod
    def may(self, asked: Asked, at: Opened) -> None:
        """Refuse who may not do what was filled in."""

    # -- The form --------------------------------------------------------------------------------------------

    @abstractmethod
    def form(self, asked: Asked, at: Opened) -> FillIn:
        """Return what there is to fill in."""

    @abstractmethod
    def request(self, asked: Asked, at: Opened, words: Words) -> R:
        """Return what was asked for.

        :raises GuardError: it cannot be meant.
        """

    @abstractmethod
    def run(self, at: Opened, request: R, *, dry_run: bool) -> W:
        """Do it, all or nothing, and return what it came to; or what it would come to."""

    def plan(self, at: Opened, request: R) -> Plan[W]:
        """Return what it would come to, and what makes that stale.

        As it stands here: nothing, since the act itself refuses what is not as it was looked at.
        """
        return Plan(self.run(at, request, dry_run=True), sure=True)

    @abstractmethod
    def preview(self, request: R, plan: Plan[W]) -> Preview:
        """Return the plan in words."""

    @abstractmethod
    def done(self, request: R, what: W) -> Done:
        """Return what was done in words."""

    def late(self, request: R, error: GuardError, *, confirmed: bool) -> Late:
        """Return what a page does about a refusal."""
        return Late.ASK

    def stands(self, asked: Asked, at: Opened) -> tuple[str, Sequence[Link]]:
        """Return where to see what there is now, after a refusal, and a word before it."""
        return "", ()

    def files(self) -> Mapping[str, tuple[str, str, str]]:
        """Return files to download beside the form: by address, what it is saved as, its content type and its text."""
        return {}

    # -- The command -----------------------------------------------------------------------------------------

    def check(self, given: argparse.Namespace) -> Act[Any, Any]:
        """Return the act that the arguments mean.

        :raises UsageError: they mean none.
        """
        return self

    def lists(self, given: argparse.Namespace) -> bool:
        """Return whether nothing is to be changed, and the command shows what there is."""
        return False

    def listed(self, given: argparse.Namespace, at: Opened) -> Said:
        """Return what there is."""
        raise NotImplementedError

    def given(self, given: argparse.Namespace, at: Opened, words: Words) -> R:
        """Return what the arguments ask for."""
        raise NotImplementedError

    def question(self, request: R, plan: Plan[W]) -> Question:
        """Return what a person is asked at the terminal."""
        raise NotImplementedError

    def said(self, request: R, what: W, *, dry_run: bool) -> Said:
        """Return what the command prints."""
        raise NotImplementedError
