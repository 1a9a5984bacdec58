"""Who asks, as acts see it: what Airflow lets that person read and edit, and what is said where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.pages.access import known_dags
from airflow_guard.pages.forms.posted import Refused
from airflow_guard.reading.scope import NotThere

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_guard.pages.access import Caller


class PagePerson:
    """A user of Airflow; what the checks raise is for the page.

    :param caller: who came through the gate.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def name(self) -> str:
        """The name that the ledger stores as the actor."""
        return self._caller.name

    @property
    def readable(self) -> frozenset[str]:
        """The DAGs that the person may read."""
        return self._caller.readable

    @property
    def dags(self) -> list[str]:
        """The DAGs that the person may read and edit."""
        return sorted(self._caller.editable & self._caller.readable)

    def edits_everywhere(self) -> bool:
        """Return whether the person may edit every DAG of this Airflow."""
        every = known_dags()
        return bool(every) and every <= self._caller.editable

    def must_edit_some(self) -> None:
        """Do nothing if the person may edit any DAG.

        :raises NotThere: none.
        """
        if not self._caller.editable:
            raise NotThere

    def must_edit(self, dag_ids: Iterable[str]) -> None:
        """Do nothing if the person may edit each of the DAGs.

        :raises NotThere: one may not even be read.
        :raises Refused: one may be read, but not edited (403).
        """
        for dag_id in sorted(set(dag_ids)):
            if dag_id not in self._caller.readable:
                raise NotThere
            if dag_id not in self._caller.editable:
                raise _no_access(
                    f"You may read {dag_id}, but not edit it in Airflow, so you cannot change this."
                )

    def must_edit_all_of(self, dag_ids: Iterable[str]) -> None:
        """Do nothing if the person may edit all DAGs that are concerned.

        What belongs to no DAG that Airflow still has is for those who may edit every DAG.

        :raises NotThere: the person may read none of them.
        :raises Refused: may not edit one of them (403).
        """
        concerned, here = set(dag_ids), set(dag_ids) & known_dags()
        if self.edits_everywhere():
            return
        if not here & self._caller.readable:
            raise NotThere
        if not concerned <= self._caller.editable:
            named = sorted((here & self._caller.readable) - self._caller.editable)
            which = f": {', '.join(named)}" if named else ""
            raise _no_access(
                f"This concerns DAGs that you may not edit in Airflow, so you cannot change it{which}."
            )

    def must_edit_everywhere(self) -> None:
        """Do nothing if the person may edit every DAG of this Airflow.

        :raises Refused: 403.
        """
        if not self.edits_everywhere():
            raise _no_access("This concerns all DAGs, so it needs permission to edit every DAG in Airflow.")


def _no_access(text: str) -> Refused:
    return Refused(403, "No access", text)
