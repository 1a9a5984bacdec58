"""``make chaos-selftest``: the package is broken on purpose, in three ways, and the referee must see each of them.

A referee that has never found anything proves nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from chaos.plan import TASKS_PER_FAULT
from chaos.sabotage import KINDS


@dataclass(frozen=True, slots=True)
class Attempt:
    """Faults that bring a breach to light, how many of them at most, and the documents of each task."""

    only: tuple[str, ...]
    faults: int
    documents: int


ATTEMPTS = {
    # The other has done what the first had not begun when it goes on.
    "fencing": Attempt(("another run comes",), 12, documents=20),
    # The next try cannot know that the effect had begun.
    "start-mark": Attempt(("kill -9 task",), 30, documents=6),
    # The other finds a lease over that is not, and asks too early whether anything has happened.
    "worker-clock": Attempt(("another run comes",), 12, documents=6),
}


def main() -> int:
    """Break each and return 0 if each was seen."""
    parser = argparse.ArgumentParser(prog="python -m chaos.selftest", description=main.__doc__)
    parser.add_argument(
        "kinds", nargs="*", default=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}; default: all"
    )
    given = parser.parse_args()
    missed = [kind for kind in given.kinds if not _is_seen(kind)]
    for kind in given.kinds:
        print(f"{kind}: {'NOT SEEN' if kind in missed else 'seen'}", flush=True)
    return 1 if missed else 0


def _is_seen(kind: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="guard-chaos-", ignore_cleanup_errors=True) as folder:
        return _is_seen_in(kind, ATTEMPTS[kind], folder)


def _is_seen_in(kind: str, attempt: Attempt, folder: str) -> bool:
    options = {
        "--folder": folder, "--break": kind, "--faults": attempt.faults, "--seed": 7,
        "--documents": attempt.faults * attempt.documents * TASKS_PER_FAULT,
        "--fault-time": 240, "--quiet-time": 60,
    }  # fmt: skip
    command = [sys.executable, "-m", "chaos", "--until-seen"]
    command += [str(part) for option in options.items() for part in option]
    for words in attempt.only:
        command += ["--only", words]
    print(f"--- broken: {kind}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rig:
        said = []
        for line in rig.stdout or ():
            print(line, end="", flush=True)
            said.append(line)
    # 2 would be the rig that failed. Stuck is not enough: a slow machine may be so too.
    return rig.returncode == 1 and "duplicates=0 " not in "".join(said)


if __name__ == "__main__":
    sys.exit(main())
