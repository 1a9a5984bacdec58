"""The ledger's versions, for Alembic.

Nothing is released yet: the one version is made from ``tables.py``, and a change of the tables is a change there. From
the first release on, a new version is one more module in ``versions/`` (its ``down_revision`` is the last one) and one
more entry in :data:`REVISIONS`; a released one never changes, carries its own copy of what it creates, and imports
neither tables nor states. ``tests/contract/test_migrations.py`` compares what the versions make with what ``tables.py``
says, on every database.
"""

from __future__ import annotations

from typing import Final

REVISIONS: Final = ("0001",)
"""All versions, oldest first. Here, so that a task can check its ledger without importing Alembic."""

HEAD_REVISION: Final = REVISIONS[-1]
"""The version that this release of the package works with."""


def version_table(prefix: str) -> str:
    """Return the name of the table that holds a ledger's version.

    It carries the ledger's prefix: several ledgers, and others that use Alembic (Airflow), live in one
    database without touching each other's version.
    """
    return f"{prefix}alembic_version"
