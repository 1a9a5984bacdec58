"""The same commands as ``airflow guard …``, for Airflow 3.2 and newer."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_guard.commands.definitions import COMMANDS, GROUP_HELP

if TYPE_CHECKING:
    import argparse

    from airflow.cli.cli_config import ActionCommand, GroupCommand

    from airflow_guard.acts.arguments import Command


def get_cli_commands() -> list[GroupCommand]:
    """Return the group ``guard``, as Airflow asks for it through the provider description."""
    from airflow.cli.cli_config import GroupCommand

    return [
        GroupCommand(
            name="guard",
            help=GROUP_HELP,
            subcommands=tuple(_action(command) for command in COMMANDS),
        )
    ]


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
    # Imported only now: Airflow calls this module at every start of its command line.
    from airflow_guard.commands.main import execute

    code = execute(command, given)
    if code:
        sys.exit(code)
