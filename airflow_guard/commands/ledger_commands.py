"""The commands on the ledger as a whole, and those that look for causes."""

from __future__ import annotations

from airflow_guard.acts.arguments import (
    ACTOR,
    DRY_RUN,
    LEDGER,
    OUTPUT,
    REASON,
    SEVERITIES,
    Argument,
    Command,
)

MIGRATE = Command(
    "migrate",
    "Create the ledger's tables, or bring them to this version",
    "airflow_guard.commands.migrate:run",
    (
        *LEDGER,
        Argument(
            "--sql", action="store_true", help="print the statements instead, for an administrator to run"
        ),
        Argument(
            "--dialect",
            choices=("postgresql", "mysql", "sqlite"),
            default=None,
            help="with --sql: for a new ledger in this kind of database, without connecting to one",
        ),
        Argument(
            "--partition",
            action="store_true",
            help="then partition the keys by month (PostgreSQL); locks the table",
        ),
        Argument(
            "--partitions-ahead",
            type=int,
            metavar="N",
            help="of a partitioned ledger: add what is missing of this month and the N after it",
        ),
    ),
)

PURGE = Command(
    "purge",
    "Remove old keys that are done, and leave a horizon",
    "airflow_guard.commands.purge:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="only this DAG (or key_namespace)"),
        Argument("operation", nargs="?", metavar="OPERATION", help="only this operation"),
        Argument("--until", metavar="DATE", help="the last business date that goes"),
        Argument("--older-than", metavar="DAYS", help="or by age, such as 730d"),
        Argument(
            "--batch", type=int, default=1000, metavar="N", help="rows in a transaction (default: 1000)"
        ),
        REASON,
        ACTOR,
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="What is not done stays, and so do open breaks, keys that hold once per document, and the audit. Claims of "
    "the same operations for these dates are refused from then on.",
    epilog="example:\n"
    '  airflow-guard purge --older-than 730d --reason "two years, as the policy says" --dry-run',
)

FAILOVER = Command(
    "failover",
    "Say that a fail-over may have lost commits, so that nothing is executed that was done",
    "airflow_guard.commands.failover:run",
    (
        Argument(
            "--lost-since",
            metavar="INSTANT",
            help="commits since then may be lost: ISO 8601 with a zone, such as 2025-03-31T02:10:00Z",
        ),
        Argument(
            "--close", action="store_true", help="the ledger was compared with the receivers: trust it again"
        ),
        REASON,
        ACTOR,
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="Effects outside the database that had begun become in doubt, and so do those that tasks ask for and that "
    "the ledger may have forgotten. Without --lost-since and --close: what is open.",
    epilog="examples:\n"
    '  airflow-guard failover --lost-since 2025-03-31T02:10:00Z --reason "db2 took over at 02:12, 90 s behind"\n'
    '  airflow-guard failover --close --reason "compared with the bank\'s report until 02:20"',
)

EXPORT = Command(
    "export",
    "Write the keys of a range of business dates, or the audit, as CSV",
    "airflow_guard.commands.export:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="only this DAG (or key_namespace)"),
        Argument("--operation", help="only this operation"),
        Argument(
            "--start",
            required=True,
            metavar="DATE",
            help="first business date; with --events the first day (UTC)",
        ),
        Argument("--end", metavar="DATE", help="the last one (default: the first)"),
        Argument("--events", action="store_true", help="the audit instead: who did what, and why"),
        Argument("--figures", action="store_true", help="the figures of each operation and date instead"),
        Argument("--file", metavar="FILE", help="where to; it must not exist yet (default: standard output)"),
        *LEDGER,
    ),
    description="RFC 4180, UTF-8. What a spreadsheet would take for a formula gets an apostrophe before it.",
    epilog="example:\n  airflow-guard export statements --start 2025-03-01 --end 2025-03-31 --file march.csv",
)

DIAGNOSE = Command(
    "diagnose",
    "Say why a date was done twice, or not at all",
    "airflow_guard.commands.diagnose:run",
    (
        Argument("dag", metavar="DAG", help="the DAG"),
        Argument("date", metavar="DATE", help="business date, YYYY-MM-DD"),
        Argument("--table", metavar="TABLE", help="the business table"),
        Argument("--table-key", metavar="COLUMN", help="its column that is the document"),
        Argument(
            "--date-column",
            metavar="COLUMN",
            help="its column that is the business date (default: all rows count)",
        ),
        Argument(
            "--conn-id", metavar="CONN_ID", help="connection of the table (default: the ledger's database)"
        ),
        Argument("--source-url", metavar="URL", help="the same as a URL"),
        Argument(
            "--airflow-db",
            metavar="URL",
            help="Airflow's metadata database, where the API does not answer (default: [database] sql_alchemy_conn)",
        ),
        Argument(
            "--airflow-url",
            metavar="URL",
            help="Airflow's API server, asked first (default: [api] base_url, if AIRFLOW_GUARD_API_TOKEN holds a token; "
            "POST /auth/token gives one)",
        ),
        Argument("--timezone", default="UTC", metavar="ZONE", help="of the DAG (default: UTC)"),
        OUTPUT,
        *LEDGER,
    ),
    description="Reads only. In a fixed order: Airflow's runs and tries, the ledger, and the business table if it is named. "
    "The business rows win.",
    epilog="example:\n"
    "  airflow-guard diagnose statements 2025-03-31 --table posting --table-key statement_no --date-column posted_on",
)

AUDIT = Command(
    "audit",
    "List the tasks of DAG files that could do their effect twice",
    "airflow_guard.commands.audit:run",
    (
        Argument(
            "paths", nargs="*", metavar="DAGS_FOLDER", help="folders or files (default: [core] dags_folder)"
        ),
        Argument(
            "--fail-on",
            choices=(*SEVERITIES, "never"),
            default="high",
            metavar=f"({', '.join(SEVERITIES)}, never)",
            help="exit with 1 if a finding is as bad as that (default: high)",
        ),
        OUTPUT,
        *LEDGER,
    ),
    description="Imports the files as Airflow does, and runs nothing. With --ledger it also compares execution_timeout with "
    "how long guarded tasks took.",
    epilog="example:\n  airflow-guard audit dags --fail-on medium",
)
