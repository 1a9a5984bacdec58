"""``make chaos``: real parts, work, faults, and a referee.

The exit code is 0 if nothing was doubled, lost, kept silent or stuck and all faults were carried out, 1 if something was
or some were not, 2 if the rig itself failed.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_guard.core.errors import GuardError
from chaos import sabotage
from chaos.duty import Duty
from chaos.faults import celery, databases, machines, people, processes  # noqa: F401 - they register their faults
from chaos.faults.drawing import FAULTS, Chaos
from chaos.plan import TASKS_PER_FAULT
from chaos.referee import Verdict, has_duplicates, judge
from chaos.rest import open_work, wait_for_rest
from chaos.rig import Rig, first_plan

if TYPE_CHECKING:
    from chaos.faults.drawing import Fault

_FAILED = 2
_SECONDS_PER_FAULT = 12


def main() -> int:
    """Run the rig and return the exit code."""
    given = _arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="guard-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # the servers run as another user, where root starts them
    code = _FAILED
    try:
        code = _run(given, folder)
    except KeyboardInterrupt:
        say("stopped")
        code = 128 + signal.SIGINT
    except (GuardError, OSError, TimeoutError) as error:
        say(f"the rig failed: {type(error).__name__}: {error}")
    finally:
        if given.keep or code not in (0, 128 + signal.SIGINT):
            say(f"everything is kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description="Real parts, work, faults, and a referee."
    )
    parser.add_argument("--faults", type=int, default=40, help="how many; default 40")
    parser.add_argument("--seed", type=int, default=None, help="repeats the faults of another run")
    parser.add_argument("--documents", type=int, default=2000, help="how many effects at least; default 2000")
    parser.add_argument(
        "--documents-each",
        type=int,
        metavar="N",
        help="documents of each task; default: by faults and documents",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORDS", help="only faults whose name has them"
    )
    parser.add_argument("--celery", action="store_true", help="CeleryExecutor, two workers, Redis")
    parser.add_argument("--break", dest="broken", choices=sabotage.KINDS, help="break the package on purpose")
    parser.add_argument(
        "--fault-time", type=float, metavar="S", help="no fault begins later; default 12 for each fault"
    )
    parser.add_argument(
        "--quiet-time",
        type=float,
        default=240,
        metavar="S",
        help="nothing gets done for so long before rest; default 240",
    )
    parser.add_argument(
        "--late-is-right",
        action="store_true",
        help="work that is not done in time, and faults that were not, are told and are no failure",
    )
    parser.add_argument(
        "--until-seen", action="store_true", help="end at the first duplicate, with no time to come to rest"
    )
    parser.add_argument("--folder", type=Path, help="where everything lies, empty; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args()
    if given.seed is None:
        given.seed = int(time.time()) % 1_000_000
    if given.fault_time is None:
        given.fault_time = _SECONDS_PER_FAULT * given.faults
    return given


def _run(given: argparse.Namespace, folder: Path) -> int:
    began = time.monotonic()
    chosen = [
        each
        for name, each in FAULTS.items()
        if (given.celery or not each.celery)
        and (not given.only or any(words in name for words in given.only))
    ]
    documents = given.documents_each or max(3, round(given.documents / (given.faults * TASKS_PER_FAULT)))
    say(f"seed {given.seed}, {len(chosen)} kinds of faults, {documents} documents for each task")
    with Rig(
        folder, first_plan(documents, min(0.5, 6 / documents)), celery=given.celery, broken=given.broken
    ) as rig:
        rig.begin()
        say(f"the parts are up after {time.monotonic() - began:.0f} s: {rig.describe()}")
        verdict, faults = _disturb(given, rig, chosen)
    for line in verdict.lines():
        say(line)
    say(f"seed={given.seed} took {time.monotonic() - began:.0f} s")
    say(verdict.closing(faults))
    whole = verdict.good and faults >= given.faults
    return 0 if whole or (given.late_is_right and verdict.safe) else 1


def _disturb(given: argparse.Namespace, rig: Rig, chosen: list[Fault]) -> tuple[Verdict, int]:
    duty = Duty(rig, given.documents)
    chaos = Chaos(rig, given.seed, chosen, say)
    duty.start()

    def enough() -> bool:
        return bool(given.until_seen) and has_duplicates(rig)

    try:
        try:
            chaos.carry_out(given.faults, time.monotonic() + given.fault_time, enough)
        finally:
            chaos.end()
        say(f"the faults are over: {chaos.count}")
        duty.more_work = False
        if enough():
            say("a duplicate was seen, and that is enough")
        else:
            _come_to_rest(given, rig)
    finally:
        duty.go_home()  # also after Ctrl-C: nobody asks an Airflow that is being ended
    say(duty.summary())
    kinds = ", ".join(f"{number} {name}" for name, number in sorted(chaos.done.items()))
    say(f"faults of {len(chaos.done)} kinds: {kinds}")
    return judge(rig), chaos.count


def _come_to_rest(given: argparse.Namespace, rig: Rig) -> None:
    began = time.monotonic()
    if wait_for_rest(rig, given.documents, given.quiet_time):
        say(f"time to quiet: {time.monotonic() - began:.0f} s")
        return
    say(f"not quiet, and nothing more was done for {given.quiet_time:.0f} s")
    for line in open_work(rig):
        say(line)


def say(line: str) -> None:
    """Print a line at once: who waits for a run wants to see it."""
    print(line, flush=True)


def _stop(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
