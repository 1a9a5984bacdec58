"""The Markdown pages of the project, and what is fenced in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`]*)$")
_HEADING = re.compile(r"^(#{1,6}) (.+)$")
_LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Fence:
    """A fenced block.

    :param line: where its text begins, from 1.
    :param language: the first word after the fence, ``""`` for none.
    :param words: the other words there, which say how it is tested.
    """

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """One page.

    :param name: path from the root of the project.
    :param prose: its text without what is fenced, line numbers kept.
    """

    name: str
    text: str
    prose: str
    fences: tuple[Fence, ...]

    @property
    def anchors(self) -> set[str]:
        """The anchors of its headings, as GitHub makes them."""
        found: dict[str, int] = {}
        names = set()
        for line in self.prose.splitlines():
            heading = _HEADING.match(line)
            if heading:
                name = _anchor(heading[2])
                count = found.get(name, 0)
                found[name] = count + 1
                names.add(f"{name}-{count}" if count else name)
        return names

    @property
    def links(self) -> list[str]:
        """The targets of its links."""
        without_code = re.sub(r"`[^`\n]*`", "", self.prose)
        return [match["target"] for match in _LINK.finditer(without_code)]

    def section(self, heading: str) -> str:
        """Return the text under a heading, up to the next one of its rank or above."""
        lines: list[str] = []
        rank = 0
        for line in self.text.splitlines():
            match = _HEADING.match(line)
            if match and rank and len(match[1]) <= rank:
                break
            if rank:
                lines.append(line)
            elif match and match[2].strip() == heading:
                rank = len(match[1])
        if not rank:
            msg = f"{self.name} has no heading {heading!r}"
            raise LookupError(msg)
        return "\n".join(lines)


@cache
def page(name: str) -> Page:
    """Return a page by its path from the root."""
    text = (ROOT / name).read_text(encoding="utf-8")
    prose, fences, block = [], [], None
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if block is None and fence:
            block = (fence["fence"], fence["info"].split(), number + 1, [])
            prose.append("")
        elif block is not None and fence and fence["fence"] == block[0] and not fence["info"].strip():
            _, info, start, lines = block
            language, *words = info or [""]
            fences.append(Fence(name, start, language, tuple(words), "\n".join(lines) + "\n"))
            block = None
            prose.append("")
        elif block is not None:
            block[3].append(line)
            prose.append("")
        else:
            prose.append(line)
    if block is not None:
        msg = f"{name}: a fence is never closed"
        raise ValueError(msg)
    return Page(name, text, "\n".join(prose), tuple(fences))


def all_pages() -> list[str]:
    """Return the names of all pages."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def fences(language: str) -> list[Fence]:
    """Return all blocks of a language."""
    return [fence for name in all_pages() for fence in page(name).fences if fence.language == language]


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without their heads."""
    rows, head = [], True
    for line in text.splitlines():
        if not line.startswith("|"):
            head = True
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            head = False
        elif not head:
            rows.append(cells)
    return rows


def _anchor(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
