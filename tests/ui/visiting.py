"""Visiting a page as a user, over HTTP."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


def visit(client: httpx.Client, path: str, *, status: int = 200) -> str:
    """Return a page's text."""
    answer = client.get(path)
    assert answer.status_code == status, (path, answer.status_code, words(answer.text))
    return answer.text


def words(page: str) -> str:
    """Return what a person reads of a page."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body))).strip()


def links(page: str, part: str) -> list[str]:
    """Return the addresses of a page that contain a part."""
    return [
        html.unescape(each) for each in re.findall(r'href="([^"]+)"', page) if part in html.unescape(each)
    ]


def field(page: str, name: str) -> str:
    """Return the value of a hidden field."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found, f"no field {name}"
    return html.unescape(found.group(1))
