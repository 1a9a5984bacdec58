"""The commands that change no key: to look, to export, to migrate, to look for causes."""

from __future__ import annotations

from airflow_guard.acts.arguments import (
    KEY,
    LEDGER,
    OUTPUT,
    SEVERITIES,
    STATES,
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

SHOW = Command(
    "show",
    "Show keys of the ledger, or the whole life of one",
    "airflow_guard.commands.show:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="a DAG (or key_namespace)"),
        Argument("date", nargs="?", metavar="DATE", help="business date, YYYY-MM-DD"),
        Argument("--operation", help="one operation (by default the task_id)"),
        Argument(
            "--document", action="append", default=[], metavar="ID", help="one document; can be repeated"
        ),
        KEY,
        Argument(
            "--state",
            action="append",
            default=[],
            choices=STATES,
            metavar=f"({', '.join(STATES)})",
            help="only keys that stand there; can be repeated",
        ),
        Argument("--limit", type=int, default=50, metavar="N", help="at most so many keys (default: 50)"),
        Argument(
            "--figures", action="store_true", help="the figures of each operation of DAG and DATE instead"
        ),
        OUTPUT,
        *LEDGER,
    ),
    description="What wants attention comes first. With --key: everything about that key, and the command "
    "that settles it.",
    epilog="examples:\n"
    "  airflow-guard show statements 2025-03-31\n"
    "  airflow-guard show --state in_doubt\n"
    "  airflow-guard show --key 3f21ab",
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
