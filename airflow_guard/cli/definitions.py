"""All commands and their options, once, for both fronts.

Nothing heavy is imported here: Airflow reads it at every start of its command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUTPUTS = ("table", "json", "yaml", "plain")
SEVERITIES = ("high", "medium", "low")
STATES = ("unfinished", "in_doubt", "in_progress", "rejected", "failed", "follow_up", "completed")


class UsageError(Exception):
    """The command line does not say what to do: exit code 2."""


class Argument:
    """One option or position, as ``ArgumentParser.add_argument`` and Airflow's ``Arg`` take it."""

    def __init__(self, *flags: str, **options: Any) -> None:
        self.flags = flags
        self.options = options


@dataclass(frozen=True)
class Command:
    """One command.

    :param function: where it is, ``module:name``; imported when it is used. It takes the parsed arguments, and may return
        an exit code.
    :param epilog: examples.
    """

    name: str
    help: str
    function: str
    arguments: tuple[Argument, ...]
    description: str = ""
    epilog: str = ""
    hidden: bool = field(default=False)


_LEDGER = (
    Argument(
        "--ledger",
        metavar="CONN_ID|URL",
        help="Airflow connection of the ledger, or a URL such as postgresql://user@host/db, which works "
        "without Airflow (default: [airflow_guard] ledger_conn_id)",
    ),
    Argument("--schema", help="database schema of the ledger's tables (default: [airflow_guard] schema)"),
    Argument(
        "--table-prefix",
        metavar="PREFIX",
        help="what the tables' names begin with (default: [airflow_guard] table_prefix)",
    ),
)
_OUTPUT = Argument(
    "-o",
    "--output",
    choices=OUTPUTS,
    default="table",
    metavar="(table, json, yaml, plain)",
    help="output format (default: table)",
)
_ACTOR = Argument("--actor", metavar="NAME", help="who does it (default: the user of this system)")
_REASON = Argument(
    "--reason", metavar="TEXT", help="why, for the person who reads the ledger next year; mandatory"
)
_DRY_RUN = Argument(
    "--dry-run", action="store_true", help="check and show what would be done, change nothing"
)
_KEY = Argument(
    "-k",
    "--key",
    action="append",
    default=[],
    metavar="HASH",
    help="a key, or its first characters (at least six)",
)
_CYCLE = Argument("--cycle", default=None, help="settlement cycle within the date")

_MIGRATE = Command(
    "migrate",
    "Create the ledger's tables, or bring them to this version",
    "airflow_guard.cli.migrate:run",
    (
        *_LEDGER,
        Argument(
            "--sql", action="store_true", help="print the statements instead, for an administrator to run"
        ),
        Argument(
            "--dialect",
            choices=("postgresql", "mysql", "sqlite"),
            default=None,
            help="with --sql: for a new ledger in this kind of database, without connecting to one",
        ),
    ),
)

_SHOW = Command(
    "show",
    "Show keys of the ledger, or the whole life of one",
    "airflow_guard.cli.show:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="a DAG (or key_namespace)"),
        Argument("date", nargs="?", metavar="DATE", help="business date, YYYY-MM-DD"),
        Argument("--operation", help="one operation (by default the task_id)"),
        Argument(
            "--document", action="append", default=[], metavar="ID", help="one document; can be repeated"
        ),
        _KEY,
        Argument(
            "--state",
            action="append",
            default=[],
            choices=STATES,
            metavar=f"({', '.join(STATES)})",
            help="only keys that stand there; can be repeated",
        ),
        Argument("--limit", type=int, default=50, metavar="N", help="at most so many keys (default: 50)"),
        _OUTPUT,
        *_LEDGER,
    ),
    description="What wants attention comes first. With --key: everything about that key, and the command "
    "that settles it.",
    epilog="examples:\n"
    "  airflow-guard show statements 2025-03-31\n"
    "  airflow-guard show --state in_doubt\n"
    "  airflow-guard show --key 3f21ab",
)

_RESOLVE = Command(
    "resolve",
    "Say what became of a key that the ledger holds back",
    "airflow_guard.cli.resolve:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="instead of --key: a DAG (or key_namespace) …"),
        Argument("date", nargs="?", metavar="DATE", help="… its business date …"),
        Argument("operation", nargs="?", metavar="OPERATION", help="… the operation …"),
        Argument(
            "documents", nargs="*", metavar="DOCUMENT", help="… and documents; none: the run as a whole"
        ),
        Argument("--all", action="store_true", help="all documents of that date and operation that stand so"),
        _KEY,
        Argument(
            "--happened", action="store_true", help="in doubt: the effect happened; it is never repeated"
        ),
        Argument(
            "--did-not-happen", action="store_true", help="in doubt: it did not; the next run executes it"
        ),
        Argument("--waive", action="store_true", help="rejected: settled another way, counts as completed"),
        Argument("--send-again", action="store_true", help="rejected: the next run executes it again"),
        Argument(
            "--followed-up", action="store_true", help="effect done, follow-up failed: that is finished too"
        ),
        _REASON,
        _ACTOR,
        Argument("--attempt", type=int, metavar="N", help="only if this is still the last attempt"),
        Argument("--owner-token", metavar="TOKEN", help="only if this attempt is still the last one"),
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        _DRY_RUN,
        _OUTPUT,
        *_LEDGER,
    ),
    description="Records what a person found out. It is asked once more before, unless with --yes. If the "
    "key changes meanwhile, nothing is recorded. The documents of a batch had one effect and are settled "
    "together.",
    epilog="examples:\n"
    '  airflow-guard resolve --key 3f21ab --happened --reason "seen in the bank\'s statement 77"\n'
    '  airflow-guard resolve payments 2025-03-31 send PAY-17 --did-not-happen --reason "not in their file"',
)

_ADOPT = Command(
    "adopt",
    "Record history that was done before the ledger kept watch, as completed",
    "airflow_guard.cli.adopt:run",
    (
        Argument("--namespace", "--dag", dest="namespace", required=True, help="the DAG, or key_namespace"),
        Argument("--operation", required=True, help="the operation (by default the task_id)"),
        Argument(
            "--csv",
            metavar="FILE",
            help="a UTF-8 file with the header business_date[,document][,cycle][,result]; - is stdin",
        ),
        Argument("--delimiter", default=",", metavar="C", help="of the CSV file (default: a comma)"),
        Argument("--sql", metavar="QUERY", help="a query with those columns; it runs read only"),
        Argument(
            "--conn-id",
            metavar="CONN_ID",
            help="with --sql: Airflow connection to run it on (default: the ledger's database)",
        ),
        Argument("--source-url", metavar="URL", help="with --sql: the same as a URL"),
        Argument(
            "--once-per",
            choices=("date", "document"),
            default="date",
            help="as the operator has it (default: date)",
        ),
        _CYCLE,
        Argument(
            "--deployment", metavar="NAME", help="whose history it is (default: [airflow_guard] deployment)"
        ),
        _REASON,
        _ACTOR,
        _DRY_RUN,
        _OUTPUT,
        *_LEDGER,
    ),
    description="All rows or none: a bad row is named, and nothing is written. Keys that the ledger has are "
    "left alone. Without a column document each row is a run as a whole.",
    epilog="examples:\n"
    '  airflow-guard adopt --dag statements --operation post --csv done.csv --reason "ran before" --dry-run\n'
    '  airflow-guard adopt --dag statements --operation post --reason "ran before" \\\n'
    '    --sql "select posted_on as business_date, statement_no as document from postings"',
)

_RENAME = Command(
    "rename",
    "Give the keys of an operation to another name, and leave an alias",
    "airflow_guard.cli.rename:run",
    (
        Argument(
            "old_namespace", metavar="OLD_NAMESPACE", help="the DAG, or key_namespace, that the ledger knows"
        ),
        Argument("old_operation", metavar="OLD_OPERATION", help="the operation that the ledger knows"),
        Argument("new_namespace", metavar="NEW_NAMESPACE", help="the DAG, or key_namespace, from now on"),
        Argument("new_operation", metavar="NEW_OPERATION", help="the operation from now on"),
        _REASON,
        _ACTOR,
        _DRY_RUN,
        _OUTPUT,
        *_LEDGER,
    ),
    description="For a DAG or task that got another name: its documents stay done. No attempt may be at "
    "work; other tasks wait while keys are moved.",
    epilog="example:\n"
    '  airflow-guard rename statements post statements post_statement --reason "clearer name"',
)

_RERUN = Command(
    "rerun",
    "Authorise that done keys are executed once more",
    "airflow_guard.cli.rerun:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="instead of --key: a DAG (or key_namespace) …"),
        Argument(
            "operation", nargs="?", metavar="OPERATION", help="… and the operation (by default the task_id)"
        ),
        Argument("--start", metavar="DATE", help="first business date"),
        Argument("--end", metavar="DATE", help="last business date (default: the first)"),
        Argument(
            "--document", action="append", default=[], metavar="ID", help="one document; can be repeated"
        ),
        _CYCLE,
        _KEY,
        Argument(
            "--expires",
            default="24h",
            metavar="LENGTH",
            help="how long it holds: 90m, 24h, 7d (default: 24h)",
        ),
        Argument(
            "--without-reversal", action="store_true", help="the first effect stays; on_rerun is not called"
        ),
        Argument(
            "--reversal-happened",
            action="store_true",
            help="of --key: on_rerun ended inside, and has reversed",
        ),
        Argument(
            "--reversal-did-not-happen",
            action="store_true",
            help="of --key: on_rerun ended inside, and has not",
        ),
        _REASON,
        _ACTOR,
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        _DRY_RUN,
        _OUTPUT,
        *_LEDGER,
    ),
    description="Nothing is executed by this command: it prints the one that does it. Each key is executed once, and "
    "under a new idempotency key; before it, on_rerun of the task's side effect reverses the first effect. What nobody "
    "has executed in time stays as it is.",
    epilog="examples:\n"
    '  airflow-guard rerun statements post --start 2025-03-01 --end 2025-03-31 --reason "wrong rate" --dry-run\n'
    '  airflow-guard rerun --key 3f21ab --without-reversal --reason "the bank lost the file" --expires 2h',
)

_PURGE = Command(
    "purge",
    "Remove old keys that are done, and leave a horizon",
    "airflow_guard.cli.purge:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="only this DAG (or key_namespace)"),
        Argument("operation", nargs="?", metavar="OPERATION", help="only this operation"),
        Argument("--until", metavar="DATE", help="the last business date that goes"),
        Argument("--older-than", metavar="DAYS", help="or by age, such as 730d"),
        Argument(
            "--batch", type=int, default=1000, metavar="N", help="rows in a transaction (default: 1000)"
        ),
        _REASON,
        _ACTOR,
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        _DRY_RUN,
        _OUTPUT,
        *_LEDGER,
    ),
    description="What is not done stays, and so do open breaks, keys that hold once per document, and the audit. Claims of "
    "the same operations for these dates are refused from then on.",
    epilog="example:\n"
    '  airflow-guard purge --older-than 730d --reason "two years, as the policy says" --dry-run',
)

_EXPORT = Command(
    "export",
    "Write the keys of a range of business dates, or the audit, as CSV",
    "airflow_guard.cli.export:run",
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
        Argument("--file", metavar="FILE", help="where to; it must not exist yet (default: standard output)"),
        *_LEDGER,
    ),
    description="RFC 4180, UTF-8. What a spreadsheet would take for a formula gets an apostrophe before it.",
    epilog="example:\n  airflow-guard export statements --start 2025-03-01 --end 2025-03-31 --file march.csv",
)

_DIAGNOSE = Command(
    "diagnose",
    "Say why a date was done twice, or not at all",
    "airflow_guard.cli.diagnose:run",
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
            help="Airflow's metadata database (default: [database] sql_alchemy_conn)",
        ),
        Argument(
            "--airflow-url",
            metavar="URL",
            help="or Airflow's API server; AIRFLOW_GUARD_API_TOKEN holds the token (POST /auth/token gives one)",
        ),
        Argument("--timezone", default="UTC", metavar="ZONE", help="of the DAG (default: UTC)"),
        _OUTPUT,
        *_LEDGER,
    ),
    description="Reads only. In a fixed order: Airflow's runs and tries, the ledger, and the business table if it is named. "
    "The business rows win.",
    epilog="example:\n"
    "  airflow-guard diagnose statements 2025-03-31 --table posting --table-key statement_no --date-column posted_on",
)

_AUDIT = Command(
    "audit",
    "List the tasks of DAG files that could do their effect twice",
    "airflow_guard.cli.audit:run",
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
        _OUTPUT,
        *_LEDGER,
    ),
    description="Imports the files as Airflow does, and runs nothing. With --ledger it also compares execution_timeout with "
    "how long guarded tasks took.",
    epilog="example:\n  airflow-guard audit dags --fail-on medium",
)

COMMANDS: tuple[Command, ...] = (
    _MIGRATE,
    _SHOW,
    _RESOLVE,
    _ADOPT,
    _RENAME,
    _RERUN,
    _PURGE,
    _EXPORT,
    _DIAGNOSE,
    _AUDIT,
)
GROUP_HELP = (
    "The ledger of what was done once: look, settle, adopt, rename, rerun, purge, export, diagnose, audit"
)
