"""The console script ``airflow-guard``, and what both fronts do around a command: errors and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_guard.acts.arguments import Command, UsageError
from airflow_guard.commands.definitions import COMMANDS
from airflow_guard.core.commands import PROGRAM
from airflow_guard.core.errors import GuardError
from airflow_guard.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

DONE, REFUSED, USAGE = 0, 1, 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 done, 1 refused, 2 wrong usage.

    :param arguments: without the program's name; ``None``: of this process.
    """
    parser = _parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown and not (given.command and given.command.hidden):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if given.command is None:
        parser.print_help()
        return USAGE
    return execute(given.command, given)


def execute(command: Command, given: argparse.Namespace) -> int:
    """Run a command and turn its errors into a line and an exit code."""
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_guard.acts.act import Act
    from airflow_guard.commands.acting import run

    module, _, name = command.function.partition(":")
    try:
        found = getattr(import_module(module), name)
        code = DONE
        if isinstance(found, Act):
            run(found, given)
        else:
            code = found(given)
        sys.stdout.flush()
        return int(code or DONE)
    except UsageError as error:
        return _complain(f"{PROGRAM} {command.name}: {error}", USAGE)
    except GuardError as error:
        return _complain(f"{type(error).__name__}: {error}", REFUSED)
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        return _complain(f"The database refused it: {said}", REFUSED)
    except KeyboardInterrupt:
        return _complain("Interrupted.", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has seen enough; without this, closing it complains once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _complain(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        PROGRAM, description="Look into the ledger, and settle what it holds back."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        shown: dict[str, Any] = {} if command.hidden else {"help": command.help}
        one = commands.add_parser(
            command.name,
            description=command.description or command.help,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **shown,
        )
        for argument in command.arguments:
            one.add_argument(*argument.flags, **argument.options)
        one.set_defaults(command=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
