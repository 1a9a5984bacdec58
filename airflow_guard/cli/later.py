"""Commands that are specified, but not in this version: they say what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from airflow_guard.core.errors import NotAvailableYet

if TYPE_CHECKING:
    import argparse


def rerun(given: argparse.Namespace) -> NoReturn:  # noqa: ARG001 - the signature of every command
    """Refuse."""
    raise NotAvailableYet(
        "reruns on purpose are not in this version: a done key is not executed again. If it was recorded as "
        "done by mistake or must be done once more, give the new work a key of its own: another cycle, or "
        "another operation."
    )


def purge(given: argparse.Namespace) -> NoReturn:  # noqa: ARG001 - the signature of every command
    """Refuse."""
    raise NotAvailableYet(
        "purging is not in this version. Keep the rows: deleting them by hand makes old work look undone, "
        "and it would be executed again. On PostgreSQL the table can be partitioned by key_date."
    )
