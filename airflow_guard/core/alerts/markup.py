"""The forms of a message: plain text, HTML, Markdown, Slack. Each escapes what others have written."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARKDOWN = re.compile(r"([\\`*_\[\]|<>~])")
_AT_LINE_START = re.compile(r"^(\s*\d*)([#+.)=-])")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a message.

    :param label: what it is, ``""`` for none.
    :param is_command: whether it is to be copied as it is.
    :param is_link: whether it is an address.
    """

    text: str
    label: str = ""
    is_command: bool = False
    is_link: bool = False


def as_text(heading: str, lines: Sequence[Line]) -> str:
    """Return plain text."""
    return "\n".join([heading, *(_plain(line) for line in lines)])


def as_html(heading: str, lines: Sequence[Line]) -> str:
    """Return an HTML fragment, with styles that mail programs keep."""
    parts = [f"<p><b>{html.escape(heading)}</b></p>"]
    parts += [_html(line) for line in lines]
    body = "\n".join(parts)
    return f'<div style="font-family:sans-serif;font-size:15px;line-height:1.4">\n{body}\n</div>'


def as_markdown(heading: str, lines: Sequence[Line]) -> str:
    """Return Markdown (CommonMark), as Teams, Mattermost and most others read it."""
    parts = [f"**{escaped_markdown(heading)}**", *(_markdown(line) for line in lines)]
    return "\n\n".join(parts)


def as_slack(heading: str, lines: Sequence[Line]) -> str:
    """Return Slack's ``mrkdwn``. A text of others cannot mention anybody."""
    return "\n".join([f"*{_slack_escaped(heading)}*", *(_slack(line) for line in lines)])


def is_address(text: str) -> bool:
    """Return whether a text may become a link."""
    return urlsplit(text).scheme in ("http", "https") and not re.search(r"[\s<>\"]", text)


def _plain(line: Line) -> str:
    if line.is_command:
        return f"  {line.text}"
    return f"{line.label}: {line.text}" if line.label else line.text


def _html(line: Line) -> str:
    text, label = html.escape(line.text), f"<b>{html.escape(line.label)}:</b> " if line.label else ""
    if line.is_command:
        style = "white-space:pre-wrap;word-break:break-all;background:#f3f3f3;padding:6px"
        return f'<pre style="{style}">{text}</pre>'
    if line.is_link and is_address(line.text):
        text = f'<a href="{text}">{text}</a>'
    return f'<p style="margin:4px 0">{label}{text}</p>'


def _markdown(line: Line) -> str:
    if line.is_command:
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", line.text)), default=0))
        return f"{fence}\n{line.text}\n{fence}"
    label = f"**{escaped_markdown(line.label)}:** " if line.label else ""
    return label + (
        f"<{line.text}>" if line.is_link and is_address(line.text) else escaped_markdown(line.text)
    )


def escaped_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return _AT_LINE_START.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", text))


def _slack(line: Line) -> str:
    if line.is_command:
        return f"```{_slack_escaped(line.text)}```"
    label = f"*{_slack_escaped(line.label)}:* " if line.label else ""
    # Slack has no escape for its own marks; between zero-width spaces they are text. Not in a command: it is copied.
    text = re.sub(r"([*_~`])", "\u200b\\1\u200b", line.text)
    if line.is_link and is_address(line.text):
        return f"{label}<{_slack_escaped(line.text)}>"
    return label + _slack_escaped(text)


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
