"""The ledger in a database: tables, one named function per statement, dialects, migrations."""
