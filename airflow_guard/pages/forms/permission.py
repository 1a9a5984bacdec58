"""Who may change what belongs to whole operations, or to every DAG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.pages.access import known_dags
from airflow_guard.pages.forms.posted import Refused
from airflow_guard.pages.page import NotThere

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_guard.pages.page import Page


def require_edit_everywhere(page: Page) -> None:
    """Do nothing if the caller may edit every DAG of this Airflow.

    :raises Refused: 403.
    """
    if not edits_everywhere(page):
        raise Refused(
            403, "No access", "This concerns all DAGs, so it needs permission to edit every DAG in Airflow."
        )


def edits_everywhere(page: Page) -> bool:
    """Return whether the caller may edit every DAG of this Airflow."""
    every = known_dags()
    return bool(every) and every <= page.caller.editable


def require_edit_of(page: Page, dag_ids: Iterable[str]) -> None:
    """Do nothing if the caller may edit all DAGs that are concerned.

    What belongs to no DAG that Airflow still has is for those who may edit every DAG.

    :raises NotThere: the caller may read none of them.
    :raises Refused: may not edit one of them (403).
    """
    concerned, every = set(dag_ids), known_dags()
    here = concerned & every
    if edits_everywhere(page):
        return
    if not here & page.readable:
        raise NotThere
    if not concerned <= page.caller.editable:
        named = sorted((here & page.readable) - page.caller.editable)
        which = f": {', '.join(named)}" if named else ""
        raise Refused(
            403,
            "No access",
            f"This concerns DAGs that you may not edit in Airflow, so you cannot change it{which}.",
        )
