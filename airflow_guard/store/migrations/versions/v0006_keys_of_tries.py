"""Keys by the try that has them.

Keys that an attempt holds have no index of their own, since each step of each key would write to it. The lease of the
attempt leads to them by this one, which a key enters once, at its end.

Revision: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_guard.core.errors import ConfigurationError

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade(prefix: str, schema: str | None) -> None:
    """Create the index, unless an interrupted migration has done so (MySQL and MariaDB commit each statement)."""
    name, table = f"{prefix}execution_try", f"{prefix}execution"
    if not op.get_context().as_sql:
        indexes = sa.inspect(op.get_bind()).get_indexes(table, schema=schema)
        if name in {index["name"] for index in indexes}:
            return
    op.create_index(name, table, ["task_run_id"], schema=schema)


def downgrade(prefix: str, schema: str | None) -> None:
    """Refuse: the ledger is the memory of what was done, and no migration throws that away."""
    raise ConfigurationError(f"The ledger {schema or ''}.{prefix}* cannot go back before {revision}.")
