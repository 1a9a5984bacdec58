"""What a form sent: checked for where it comes from and how large it is, before anything of it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import UploadFile

from airflow_guard.acts.adopt import MAX_UPLOAD_BYTES
from airflow_guard.airflow_compat import conf
from airflow_guard.core.errors import ResolutionError
from airflow_guard.pages.page import Page
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import Message

MAX_FIELDS = 80
"""A list shows 50 rows that can be chosen."""
MAX_BYTES = 1_000_000
_UPLOAD_ROOM = 2 * MAX_UPLOAD_BYTES
"""The confirmation carries the file once more, packed and as text."""


class Refused(Exception):
    """A form is not accepted; nothing was changed. The message is for the person at the page.

    :param status: 403 for who may not, 409 for what has changed meanwhile, 413 for what is too large.
    :param links: where to go on: words and address.
    """

    def __init__(self, status: int, title: str, text: str, links: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.title = title
        self.text = text
        self.links = links


class Posted:
    """A form that was sent.

    :param values: texts by name, in the order in which they were sent.
    :param files: uploads by name.
    """

    def __init__(
        self, page: Page, values: Mapping[str, Sequence[str]], files: Mapping[str, UploadFile]
    ) -> None:
        self.page = page
        # Browsers send every line end as two characters, whatever the page had.
        self.values = {
            name: [each.replace("\r\n", "\n").strip() for each in some] for name, some in values.items()
        }
        self._files = files

    def text(self, name: str) -> str:
        """Return a field, the last of its name, without white space around it; empty if absent."""
        return (self.values.get(name) or [""])[-1]

    @property
    def confirmed(self) -> bool:
        """Whether the preview was seen and confirmed."""
        return self.text("step") == "confirm"

    @property
    def ledger(self) -> str:
        """The ledger that the form is about.

        :raises NotThere: there is none of that name.
        """
        named = self.text("ledger")
        if named not in self.page.names:
            raise NotThere
        return named

    def upload(self, name: str) -> bytes | None:
        """Return a file; ``None`` if none was chosen.

        :raises ResolutionError: it is too large.
        """
        file = self._files.get(name)
        if file is None or not file.filename:
            return None
        content = file.file.read(MAX_UPLOAD_BYTES + 1)
        if len(content) > MAX_UPLOAD_BYTES:
            raise ResolutionError(
                f"That is larger than {MAX_UPLOAD_BYTES:,} bytes, which is all that a page takes. Do it in parts, or with the "
                "command airflow-guard, which has no limit."
            )
        return content


async def posted(request: Request) -> Posted:
    """Return what a form sent.

    :raises Refused: it does not come from these pages (403), or it is too large (413).
    """
    return await _read(request, MAX_BYTES)


async def posted_with_file(request: Request) -> Posted:
    """Return what a form with a file sent. See :func:`posted`."""
    return await _read(request, _UPLOAD_ROOM)


async def _read(request: Request, most: int) -> Posted:
    if not is_same_origin(request):
        raise Refused(
            403, "Refused", "This request did not come from a page of Airflow. Nothing was changed."
        )
    form = await _bounded(request, most).form(max_files=1, max_fields=MAX_FIELDS, max_part_size=most)
    values: dict[str, list[str]] = {}
    files: dict[str, UploadFile] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files[name] = value
        else:
            values.setdefault(name, []).append(value)
    return Posted(Page(request), values, files)


def is_same_origin(request: Request) -> bool:
    """Return whether a browser says that its own page of this origin sent the request; silence is a no.

    ``Sec-Fetch-Site`` where the browser has it, else ``Origin``, compared with the address that Airflow is known by and
    with the one that was asked. A proxy in front may have another scheme, so only host and port count there.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    if not origin or origin == "null":
        return False
    configured = str(conf.get("api", "base_url", fallback="") or "")
    hosts = {urlsplit(configured).netloc.lower(), request.headers.get("host", "").lower()} - {""}
    return urlsplit(origin).netloc.lower() in hosts


def _bounded(request: Request, most: int) -> Request:
    """Return the request with an end: what is sent beyond is neither kept in memory nor written to a disk."""
    left = most

    async def receive() -> Message:
        nonlocal left
        message = await request.receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise Refused(
                413,
                "That is too large",
                f"A page takes up to {most:,} bytes. Nothing was changed. Send it in parts.",
            )
        return message

    return Request(request.scope, receive)
