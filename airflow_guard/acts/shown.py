"""What an act says: the fields that are filled in, the preview, what was done, and what a command prints.

Plain values, in the order in which they are shown. The pages and the command line have one way each to show them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Link:
    """Where to go on, below the address of the pages; the ledger is added."""

    words: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Badge:
    """Where something stands, in a word."""

    word: str


@dataclass(frozen=True)
class Code:
    """What is typed or copied; ``hint`` says what for."""

    text: str
    hint: str = ""


# -- Blocks of a page ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """A paragraph: a text, or its parts; ``look`` is a class of the style sheet."""

    text: Any
    look: str = ""
    link: Link | None = None


@dataclass(frozen=True)
class Heading:
    """A heading below that of the page."""

    text: str


@dataclass(frozen=True)
class Listing:
    """A list of lines, texts or links."""

    lines: Sequence[Any]


@dataclass(frozen=True)
class Command:
    """A command line to copy, and what it is for."""

    why: str
    line: str


@dataclass(frozen=True)
class Facts:
    """Labelled values; a list is a paragraph each."""

    pairs: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Figures:
    """Counts, and what is counted."""

    label: str
    pairs: Sequence[tuple[int, str]]


@dataclass(frozen=True)
class Table:
    """A table.

    :param columns: what stands above, and a class of the style sheet, or ``row`` for what names the row.
    :param rows: values, as many as there are columns: texts, numbers, dates, instants, badges, links.
    :param caption: is seen; otherwise the label is the caption for those who do not see.
    :param first: so many rows are shown; ``more`` is said of the others, with ``{more}`` and ``{all}``.
    """

    label: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    first: int = 200
    more: str = "and {more} more"


@dataclass(frozen=True)
class BreakTable:
    """Breaks, as every list of them shows them."""

    rows: Sequence[Any]
    caption: str = "Breaks"


# -- What is filled in ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A field of one line; ``type`` and ``required`` as HTML has them; ``dags``: the DAGs are suggested."""

    name: str
    label: str
    hint: str = ""
    required: bool = True
    type: str = "text"
    dags: bool = False


@dataclass(frozen=True)
class Lines:
    """A field of several lines."""

    name: str
    label: str
    hint: str = ""


@dataclass(frozen=True)
class Option:
    """One of several; ``muted`` says more, ``lines`` is the name of a field of lines that belongs to it."""

    value: str
    words: str
    muted: str = ""
    lines: str = ""
    lines_label: str = ""


@dataclass(frozen=True)
class Options:
    """One of several, all seen; ``default`` is chosen at first."""

    name: str
    legend: str
    options: Sequence[Option]
    default: str = ""


@dataclass(frozen=True)
class Choice:
    """One of several, in a list; words by value."""

    name: str
    label: str
    options: Mapping[str, str]
    default: str = ""


@dataclass(frozen=True)
class Upload:
    """A file; ``accept`` as HTML has it."""

    name: str
    label: str
    hint: str
    accept: str


@dataclass(frozen=True)
class FillIn:
    """A form.

    :param why: what the reason is to say.
    :param heading: if it is not the title.
    :param badge: where the thing stands.
    :param hidden: what is sent along.
    :param cancel: where to go instead.
    :param nothing: why there is nothing to fill in.
    :param after: what stands below.
    """

    title: str
    before: Sequence[Any]
    fields: Sequence[Any]
    why: str = "Why?"
    heading: str = ""
    badge: str = ""
    hidden: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cancel: Link = Link("Cancel", "changes")
    nothing: Text | None = None
    after: Sequence[Any] = ()
    dags: Sequence[str] = ()

    @property
    def uploads(self) -> bool:
        """Whether a file is sent."""
        return any(isinstance(each, Upload) for each in self.fields)


@dataclass(frozen=True)
class Preview:
    """What would be done.

    :param title: without the word preview.
    :param button: what confirms it.
    :param nothing: why there is nothing to confirm.
    """

    title: str
    blocks: Sequence[Any]
    button: str = "Record it"
    cancel: Link = Link("Cancel", "changes")
    nothing: Text | None = None


@dataclass(frozen=True)
class Done:
    """What was done; ``go_to`` is the page that shows it, in place of this one."""

    title: str = ""
    text: Any = ""
    blocks: Sequence[Any] = ()
    links: Sequence[Link] = ()
    go_to: Link | None = None


# -- What a command prints -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Styled:
    """A line for people, with a style."""

    text: str
    style: str = "bold"


@dataclass(frozen=True)
class Rows:
    """A table; styles by the value of the first column."""

    rows: Sequence[dict[str, Any]]
    styles: Mapping[Any, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """What a command prints.

    :param data: for programs: rows, or one object.
    :param lines: for people: texts, :class:`Styled`, :class:`Rows`, :class:`Facts`, :class:`Command`.
    :param plain: rows for plain text, if not the data.
    :param note: for people, beside the data.
    """

    data: Sequence[dict[str, Any]] | dict[str, Any]
    lines: Sequence[Any]
    plain: Sequence[dict[str, Any]] | None = None
    note: str = ""


@dataclass(frozen=True)
class Question:
    """What a person is asked: lines as of :class:`Said`, then a question that is answered by yes or no."""

    lines: Sequence[Any]
    question: str
