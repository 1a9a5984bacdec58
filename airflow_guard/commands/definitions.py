"""All commands, once, for both fronts, in the order in which they are listed: to look, to change (the acts), to find causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_guard.acts.registry import acts
from airflow_guard.commands import ledger_commands

if TYPE_CHECKING:
    from airflow_guard.acts.arguments import Command

COMMANDS: tuple[Command, ...] = (
    ledger_commands.MIGRATE,
    ledger_commands.SHOW,
    *(act.command for act in acts() if act.command is not None),
    ledger_commands.EXPORT,
    ledger_commands.DIAGNOSE,
    ledger_commands.AUDIT,
)
