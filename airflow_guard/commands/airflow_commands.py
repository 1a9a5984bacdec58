"""The same commands as ``airflow guard …``, for Airflow 3.2 and newer.

Airflow calls this module at every start of its command line, whatever it is asked for. So it imports the commands, and what
they change, only where they are needed.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from airflow.cli.cli_config import ActionCommand, GroupCommand

    from airflow_guard.acts.arguments import Command


GROUP_HELP = (
    "The ledger of what was done once: look, settle, adopt, rename, rerun, purge, export, diagnose, audit"
)
_LISTING = {"guard", "cheat-sheet"}
"""The commands of Airflow that need those of the group."""


def get_cli_commands() -> list[GroupCommand]:
    """Return the group ``guard``, as Airflow asks for it through the provider description.

    Without its commands where another command of Airflow was called: nobody sees them then.
    """
    from airflow.cli.cli_config import GroupCommand

    return [GroupCommand(name="guard", help=GROUP_HELP, subcommands=() if _is_another() else _actions())]


def _is_another() -> bool:
    """Whether this process is another command of Airflow than those that need the commands of the group."""
    program = Path(sys.argv[0])
    airflow = program.stem == "airflow" or program.parts[-2:] == ("airflow", "__main__.py")
    return airflow and "_ARGCOMPLETE" not in os.environ and _LISTING.isdisjoint(sys.argv[1:2])


def _actions() -> tuple[ActionCommand, ...]:
    from airflow_guard.commands.definitions import COMMANDS

    return tuple(_action(command) for command in COMMANDS)


def _action(command: Command) -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand, Arg

    arg: Any = Arg  # untyped in Airflow

    return ActionCommand(
        name=command.name,
        help=command.help,
        func=partial(_run, command),
        args=tuple(arg(argument.flags, **argument.options) for argument in command.arguments),
        description=command.description or command.help,
        epilog=command.epilog,
        hide=command.hidden,
    )


def _run(command: Command, given: argparse.Namespace) -> None:
    from airflow_guard.commands.main import execute

    code = execute(command, given)
    if code:
        sys.exit(code)
