"""What a form sent: checked for where it comes from and who may send it, before anything of it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.datastructures import UploadFile

from airflow_guard.pages.forms.same_origin import is_same_origin
from airflow_guard.pages.forms.tokens import TokenRefused
from airflow_guard.pages.page import NotThere, Page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.responses import HTMLResponse
    from starlette.types import Message

    from airflow_guard.pages.forms.tokens import Tokens

MAX_FIELDS = 80
"""A list shows 50 rows that can be chosen."""
MAX_BYTES = 1_000_000
MAX_UPLOAD_BYTES = 5_000_000
"""Of a CSV file. A larger history is adopted in parts, or by the command."""
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

    :param page: the request as pages see it; ``text`` reads what was sent, else the query.
    :param values: texts by name, in the order in which they were sent.
    :param files: uploads by name.
    """

    def __init__(
        self, page: Page, values: Mapping[str, Sequence[str]], files: Mapping[str, UploadFile]
    ) -> None:
        self.page = page
        self.values = values
        self.files = files

    def text(self, name: str) -> str:
        """Return a field, the last of its name, without white space around it; empty if absent."""
        return (self.all(name) or [""])[-1]

    def all(self, name: str) -> list[str]:
        """Return all fields of a name, without white space around them."""
        # Browsers send every line end as two characters, whatever the page had.
        return [value.replace("\r\n", "\n").strip() for value in self.values.get(name, ())]

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

    def check_token(self, form: str, version: str) -> None:
        """Do nothing if this user saw this form about this version of the row.

        :raises Refused: 403.
        """
        try:
            tokens_of(self.page).check(self.text("token"), self.page.caller.id, form, version)
        except (TokenRefused, ValueError) as error:
            raise Refused(
                403,
                "This form is not valid any more",
                "It was open for too long, or was not made for you. Nothing was changed. Open the page again.",
            ) from error


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


def tokens_of(page: Page) -> Tokens:
    """Return what issues the tokens of forms."""
    tokens: Tokens = page.request.app.state.tokens()
    return tokens


def require_edit(page: Page, dag_id: str) -> None:
    """Do nothing if the caller may edit a DAG.

    :raises NotThere: the caller may not even read it.
    :raises Refused: may read, but not edit it (403).
    """
    if dag_id not in page.readable:
        raise NotThere
    if dag_id not in page.caller.editable:
        raise Refused(
            403, "No access", f"You may read {dag_id}, but not edit it in Airflow, so you cannot change this."
        )


def show(
    page: Page, template: str, form: str, version: str, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """Return the page of a form, with a token for this user, this form and this version of the row."""
    token = tokens_of(page).issue(page.caller.id, form, version)
    return page.render(template, status=status, token=token, version_shown=version, **values)
