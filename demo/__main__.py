"""``make demo``: a month of bank statements on a real Airflow, disturbed on purpose, and counted afterwards.

``python -m demo`` leaves Airflow's UI running until Ctrl-C; with ``--exit`` it stops at once.
The exit code is 0 if nothing was doubled, lost or wrong, 1 if something was, 2 if the demo itself failed.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import httpx
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from airflow_guard.core.errors import GuardError
from demo import open_matters, provocations, report, summary, tampering
from demo.offspring import end_marked
from demo.progress import Screen
from demo.scene import DAG, Scene, airflow_home
from demo.suppliers import PAID

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAILED = 2
_STEPS = 9
_LOG_TAIL_LINES = 30


def main() -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="A month of bank statements on a real Airflow, disturbed.",
    )
    parser.add_argument(
        "--exit", action="store_true", help="stop when all is counted, do not leave the UI running"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(".demo"), help="where everything is put; default .demo"
    )
    arguments = parser.parse_args()
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        with _folder_of_our_own(arguments.folder) as folder:
            return _play(console, folder, leave_running=not arguments.exit)
    except KeyboardInterrupt:
        console.print("\nStopped.")
        return 128 + signal.SIGINT
    except _FolderTaken as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        return _FAILED


def _play(console: Console, folder: Path, *, leave_running: bool) -> int:
    began = time.monotonic()
    console.print("\n[bold]A month of bank statements that cannot be posted twice[/bold]\n")
    scene = Scene(folder, Screen(console, _STEPS))
    try:
        with scene:
            right = _act(console, scene, leave_running=leave_running)
            took = time.monotonic() - began
            console.print(f"It took {took:.0f} s. Figures: {folder / 'summary.json'}", soft_wrap=True)
            console.print(f"Logs: {scene.log_folder}\n", soft_wrap=True)
            if leave_running:
                _leave_running(console, scene)
    except (GuardError, OSError, SQLAlchemyError, httpx.TransportError) as error:
        _explain(console, scene, error)
        return _FAILED
    return 0 if right else 1


def _act(console: Console, scene: Scene, *, leave_running: bool) -> bool:
    """Do everything; return whether the outcome is as it must be."""
    done = provocations.post_january(scene)
    done += provocations.provoke(scene)
    open_ = open_matters.begin(scene)
    done += provocations.run_again(scene)
    done += open_matters.finish(scene, open_)
    found = tampering.reconcile_month(scene)
    with scene.screen.step("The books and the receivers are counted"):
        statements = [statement for day in scene.statements.values() for statement in day]
        printed = scene.statements[max(scene.statements)]
        proof = summary.prove(
            scene.bank,
            statements,
            scene.notifications,
            scene.letters,
            printed,
            payments=scene.payments,
            paid=PAID,
        )
        summary.write_summary(scene.folder / "summary.json", summary.summary_of(scene.bank, proof, found))
    ledger = scene.ledger_url if leave_running else None
    right = report.show(console, scene.bank, done, proof, scene.notifications, ledger=ledger, found=found)
    failed = [run.run_id for run in scene.airflow.client.runs(DAG) if run.state != "success"]
    if failed:
        console.print(f"[red]These runs of {DAG} did not succeed: {', '.join(failed)}[/red]")
    return right and not failed


def _leave_running(console: Console, scene: Scene) -> None:
    airflow = scene.airflow
    console.print(
        f"Airflow goes on until you press Ctrl-C. What the ledger has to say: [bold]{airflow.address}/plugin/guard[/bold]",
        soft_wrap=True,
    )
    console.print(f"user: [bold]{airflow.user}[/bold]   password: [bold]{airflow.password}[/bold]")
    try:
        while True:
            airflow.check()
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("\nStopping …")


def _explain(console: Console, scene: Scene, error: Exception) -> None:
    console.print(f"\n[bold red]The demo failed[/bold red]: {type(error).__name__}", highlight=False)
    console.print(str(error), highlight=False, markup=False, soft_wrap=True)
    if not isinstance(error, GuardError):
        # Something did not happen; the task that wrote last is likely the one that it did not happen to.
        logs = sorted(scene.log_folder.glob("tasks/**/*.log"), key=lambda path: path.stat().st_mtime)
        for log in logs[-1:]:
            console.print(f"The end of {log}:", highlight=False)
            lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    console.print(f"All logs: {scene.log_folder}", highlight=False, soft_wrap=True)


class _FolderTaken(GuardError):
    """The folder is in use, or holds something else."""


@contextmanager
def _folder_of_our_own(folder: Path) -> Iterator[Path]:
    """Give an empty folder that no other demo uses, and end what a demo that was killed has left running."""
    lock_file = folder / "lock"
    if folder.exists() and any(folder.iterdir()) and not lock_file.exists():
        raise _FolderTaken(f"{folder} is not a folder of the demo. Name another one with --folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _FolderTaken(
                f"Another demo uses {folder}. Stop it with Ctrl-C where it runs, or name another folder with "
                "--folder."
            ) from None
        end_marked(str(airflow_home(folder)))
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            elif left != lock_file:
                left.unlink()
        yield folder


def _stop(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
