"""What can be changed here, for who may."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from airflow_guard.plugins.forms.permission import edits_everywhere
from airflow_guard.plugins.page import Page, page_of

router = APIRouter()


@router.get("/changes")
def changes(page: Annotated[Page, Depends(page_of)]) -> HTMLResponse:
    """Show the forms."""
    return page.render(
        "changes.html",
        some=bool(page.caller.editable & page.readable),
        everywhere=edits_everywhere(page),
        ledgers=page.wanted,
    )
