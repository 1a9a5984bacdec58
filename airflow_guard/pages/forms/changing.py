"""A change of a ledger, asked for at a page: who gives it up early does not know whether it was made."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from airflow_guard.core.errors import LedgerBusy, UnknownCommit
from airflow_guard.pages.forms.posted import Refused
from airflow_guard.pages.ledgers import LedgerTrouble
from airflow_guard.store.dialects import is_denied

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_guard.pages.page import Page
    from airflow_guard.store.ledger import Ledger

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_S = 20.0
"""A change may wait for locks, and a preview counts many rows."""


def change(page: Page, ledger: str, work: Callable[[Ledger], T]) -> T:
    """Return what a change, or its dry run, comes to.

    :raises Refused: 503; the message says whether anything was changed.
    :raises LedgerTrouble: the ledger cannot be reached, or is not migrated; nothing was changed.
    """
    try:
        return page.ledgers.ask(ledger, work, patience_s=PATIENCE_S)
    except UnknownCommit as error:
        raise Refused(
            503,
            "Not known",
            "The connection to the ledger broke in the last moment: it is not known whether this was recorded. Send the "
            "same form again: what is done is left alone.",
        ) from error
    except LedgerTrouble as trouble:
        cause = trouble.__cause__
        if isinstance(cause, LedgerBusy):
            raise Refused(
                503,
                "The ledger is busy",
                "A task holds what this would change. Nothing was changed. Try again in a minute.",
            ) from trouble
        if isinstance(cause, TimeoutError):
            raise Refused(
                503,
                "It takes longer than this page waits",
                "It goes on, and may still be recorded. Look in a minute, then send the same form again: what is done is "
                "left alone.",
            ) from trouble
        raise
    except Exception as error:
        if not is_denied(error):
            raise
        log.warning("Ledger %s does not allow a change: %s", ledger, error)
        raise Refused(
            403,
            "The ledger does not allow it",
            "The account with which Airflow's API server reaches this ledger may not change that. Nothing was changed. An "
            "administrator can grant it, or use the command line with another account.",
        ) from error
