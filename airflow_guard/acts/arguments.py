"""What a command and its options are, and the options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUTPUTS = ("table", "json", "yaml", "plain")
SEVERITIES = ("high", "medium", "low")
STATES = ("unfinished", "in_doubt", "in_progress", "rejected", "failed", "follow_up", "dropped", "completed")


BREAK_STATES = ("open", "explained", "resolved")


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

    :param function: where it is, ``module:name``: an act, or a function that takes the parsed arguments and may return an
        exit code.
    :param epilog: examples.
    """

    name: str
    help: str
    function: str
    arguments: tuple[Argument, ...]
    description: str = ""
    epilog: str = ""
    hidden: bool = field(default=False)


LEDGER = (
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
OUTPUT = Argument(
    "-o",
    "--output",
    choices=OUTPUTS,
    default="table",
    metavar="(table, json, yaml, plain)",
    help="output format (default: table)",
)
ACTOR = Argument("--actor", metavar="NAME", help="who does it (default: the user of this system)")
REASON = Argument(
    "--reason", metavar="TEXT", help="why, for the person who reads the ledger next year; mandatory"
)
DRY_RUN = Argument("--dry-run", action="store_true", help="check and show what would be done, change nothing")
CHANGING = (REASON, ACTOR, DRY_RUN, OUTPUT, *LEDGER)
"""Of every command that changes something."""
ASKING = (
    REASON,
    ACTOR,
    Argument("-y", "--yes", action="store_true", help="do not ask"),
    DRY_RUN,
    OUTPUT,
    *LEDGER,
)
"""Of one that asks before."""
KEY = Argument(
    "-k",
    "--key",
    action="append",
    default=[],
    metavar="HASH",
    help="a key, or its first characters (at least six)",
)
CYCLE = Argument("--cycle", default=None, help="settlement cycle within the date")
