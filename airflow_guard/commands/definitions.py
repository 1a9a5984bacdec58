"""All commands, once, for both fronts, in the order in which they are listed.

Nothing heavy is imported here: Airflow reads it at every start of its command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.commands import key_commands, ledger_commands

if TYPE_CHECKING:
    from airflow_guard.acts.arguments import Command

COMMANDS: tuple[Command, ...] = (
    ledger_commands.MIGRATE,
    key_commands.SHOW,
    key_commands.RESOLVE,
    key_commands.DROP,
    key_commands.BREAKS,
    key_commands.ADOPT,
    key_commands.RENAME,
    key_commands.RERUN,
    ledger_commands.PURGE,
    ledger_commands.FAILOVER,
    ledger_commands.EXPORT,
    ledger_commands.DIAGNOSE,
    ledger_commands.AUDIT,
)
GROUP_HELP = (
    "The ledger of what was done once: look, settle, adopt, rename, rerun, purge, export, diagnose, audit"
)
