"""Types of columns that the tables of a ledger share."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

Instant = (
    sa.DateTime()
    .with_variant(postgresql.TIMESTAMP(timezone=True, precision=6), "postgresql")
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
)
"""UTC instants. PostgreSQL keeps the zone; MySQL, MariaDB and SQLite hold UTC without saying so."""

Hash = (
    sa.CHAR(32)
    .with_variant(mysql.CHAR(32, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
    .with_variant(sa.String(32, collation="C"), "postgresql")
)
"""32 lower-case hex characters, compared by bytes on every database. Not CHAR on PostgreSQL: drivers send text, and
comparing text with CHAR converts the column, so that its index is not used."""

BigId = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
LongText = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
