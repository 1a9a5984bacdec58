"""Commands that are specified, but not in this version: they say what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from airflow_guard.core.errors import NotAvailableYet

if TYPE_CHECKING:
    import argparse


def purge(given: argparse.Namespace) -> NoReturn:  # noqa: ARG001 - the signature of every command
    """Refuse."""
    raise NotAvailableYet(
        "purging is not in this version. Keep the rows: deleting them by hand makes old work look undone, "
        "and it would be executed again. On PostgreSQL the table can be partitioned by key_date."
    )
