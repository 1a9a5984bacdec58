"""The commands on keys and breaks: what a person does about single documents and dates."""

from __future__ import annotations

from airflow_guard.acts.arguments import (
    ACTOR,
    BREAK_STATES,
    CYCLE,
    DRY_RUN,
    KEY,
    LEDGER,
    OUTPUT,
    REASON,
    STATES,
    Argument,
    Command,
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

RESOLVE = Command(
    "resolve",
    "Say what became of a key that the ledger holds back",
    "airflow_guard.commands.resolve:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="instead of --key: a DAG (or key_namespace) …"),
        Argument("date", nargs="?", metavar="DATE", help="… its business date …"),
        Argument("operation", nargs="?", metavar="OPERATION", help="… the operation …"),
        Argument(
            "documents", nargs="*", metavar="DOCUMENT", help="… and documents; none: the run as a whole"
        ),
        Argument("--all", action="store_true", help="all documents of that date and operation that stand so"),
        KEY,
        Argument(
            "--happened", action="store_true", help="in doubt: the effect happened; it is never repeated"
        ),
        Argument(
            "--did-not-happen", action="store_true", help="in doubt: it did not; the next run executes it"
        ),
        Argument("--waive", action="store_true", help="rejected: settled another way, counts as completed"),
        Argument(
            "--send-again", action="store_true", help="rejected or dropped: the next run executes it again"
        ),
        Argument("--drop", action="store_true", help="failed: it is not to be done any more"),
        Argument(
            "--followed-up", action="store_true", help="effect done, follow-up failed: that is finished too"
        ),
        Argument(
            "--content-stands",
            action="store_true",
            help="listed again with other content: what was done, or decided, stands for that content too",
        ),
        REASON,
        ACTOR,
        Argument("--attempt", type=int, metavar="N", help="only if this is still the last attempt"),
        Argument("--owner-token", metavar="TOKEN", help="only if this attempt is still the last one"),
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="Records what a person found out. It is asked once more before, unless with --yes. If the "
    "key changes meanwhile, nothing is recorded. The documents of a batch had one effect and are settled "
    "together.",
    epilog="examples:\n"
    '  airflow-guard resolve --key 3f21ab --happened --reason "seen in the bank\'s statement 77"\n'
    '  airflow-guard resolve payments 2025-03-31 send PAY-17 --did-not-happen --reason "not in their file"',
)

DROP = Command(
    "drop",
    "Say that documents that were listed and are not done are not to be done any more",
    "airflow_guard.commands.drop:run",
    (
        Argument("dag", metavar="DAG", help="a DAG (or key_namespace)"),
        Argument("date", metavar="DATE", help="its business date, YYYY-MM-DD"),
        Argument("operation", metavar="OPERATION", help="the operation (by default the task_id)"),
        Argument("documents", nargs="*", metavar="DOCUMENT", help="documents; none: the run as a whole"),
        Argument("--all", action="store_true", help="all that were listed, are not done and can be dropped"),
        CYCLE,
        REASON,
        ACTOR,
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="For what a later try of the run does not list any more, and what failed and is not wanted any more. What is "
    "in doubt has to be settled first. All of them are dropped, or none. Listed again they are held back, until "
    "resolve --send-again.",
    epilog="examples:\n"
    '  airflow-guard drop payments 2025-03-31 send PAY-17 --reason "withdrawn by the customer, ticket 77"\n'
    '  airflow-guard drop payments 2025-03-31 send --all --reason "the file was wrong" --dry-run',
)

BREAKS = Command(
    "breaks",
    "List breaks of reconciliations, and accept or settle them",
    "airflow_guard.commands.breaks:run",
    (
        Argument("dag", nargs="?", metavar="DAG", help="a DAG (or key_namespace)"),
        Argument("date", nargs="?", metavar="DATE", help="business date, YYYY-MM-DD"),
        Argument("--operation", help="one operation (by default the task_id)"),
        Argument(
            "--state",
            action="append",
            default=[],
            choices=BREAK_STATES,
            metavar=f"({', '.join(BREAK_STATES)})",
            help="only breaks that stand there; can be repeated (default: open and explained)",
        ),
        Argument(
            "--type", action="append", default=[], metavar="TYPE", help="one type of break; can be repeated"
        ),
        Argument(
            "--id", action="append", default=[], type=int, metavar="N", help="one break; can be repeated"
        ),
        Argument("--limit", type=int, default=50, metavar="N", help="at most so many (default: 50)"),
        Argument("--all", action="store_true", help="with a decision: all that the other arguments select"),
        Argument("--explain", action="store_true", help="they are right as they are: open becomes explained"),
        Argument("--resolve", action="store_true", help="they are settled; found again they are open again"),
        REASON,
        ACTOR,
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="The oldest come first. With --explain or --resolve all of the selected breaks are decided, or none.",
    epilog="examples:\n"
    "  airflow-guard breaks statements 2025-03-31\n"
    '  airflow-guard breaks --id 17 --id 18 --explain --reason "fee booked by hand, ticket 77"',
)

ADOPT = Command(
    "adopt",
    "Record history that was done before the ledger kept watch, as completed",
    "airflow_guard.commands.adopt:run",
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
        CYCLE,
        Argument(
            "--deployment", metavar="NAME", help="whose history it is (default: [airflow_guard] deployment)"
        ),
        REASON,
        ACTOR,
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="All rows or none: a bad row is named, and nothing is written. Keys that the ledger has are "
    "left alone. Without a column document each row is a run as a whole.",
    epilog="examples:\n"
    '  airflow-guard adopt --dag statements --operation post --csv done.csv --reason "ran before" --dry-run\n'
    '  airflow-guard adopt --dag statements --operation post --reason "ran before" \\\n'
    '    --sql "select posted_on as business_date, statement_no as document from postings"',
)

RENAME = Command(
    "rename",
    "Give the keys of an operation to another name, and leave an alias",
    "airflow_guard.commands.rename:run",
    (
        Argument(
            "old_namespace", metavar="OLD_NAMESPACE", help="the DAG, or key_namespace, that the ledger knows"
        ),
        Argument("old_operation", metavar="OLD_OPERATION", help="the operation that the ledger knows"),
        Argument("new_namespace", metavar="NEW_NAMESPACE", help="the DAG, or key_namespace, from now on"),
        Argument("new_operation", metavar="NEW_OPERATION", help="the operation from now on"),
        REASON,
        ACTOR,
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="For a DAG or task that got another name: its documents stay done. No attempt may be at "
    "work; other tasks wait while keys are moved.",
    epilog="example:\n"
    '  airflow-guard rename statements post statements post_statement --reason "clearer name"',
)

RERUN = Command(
    "rerun",
    "Authorise that done keys are executed once more",
    "airflow_guard.commands.rerun:run",
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
        CYCLE,
        KEY,
        Argument(
            "--expires",
            default="24h",
            metavar="LENGTH",
            help="how long it holds: 90m, 24h, 7d (default: 24h)",
        ),
        Argument(
            "--without-reversal", action="store_true", help="the first effect stays; on_rerun is not called"
        ),
        Argument("--withdraw", action="store_true", help="take back what was authorised and is not used yet"),
        Argument("--all", action="store_true", help="with --withdraw: whatever is authorised"),
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
        REASON,
        ACTOR,
        Argument("-y", "--yes", action="store_true", help="do not ask"),
        DRY_RUN,
        OUTPUT,
        *LEDGER,
    ),
    description="Nothing is executed by this command: it prints the one that does it. Each key is executed once, and "
    "under a new idempotency key; before it, on_rerun of the task's side effect reverses the first effect. What nobody "
    "has executed in time stays as it is.",
    epilog="examples:\n"
    '  airflow-guard rerun statements post --start 2025-03-01 --end 2025-03-31 --reason "wrong rate" --dry-run\n'
    '  airflow-guard rerun --key 3f21ab --without-reversal --reason "the bank lost the file" --expires 2h\n'
    '  airflow-guard rerun --withdraw --all --reason "the correction was wrong"',
)
