"""Child processes that never outlive the process that started them, however it ends.

Every child, and what it starts in turn, carries a mark in its environment. A watcher, whose standard input
is a pipe from this process, ends all that carry the mark once the pipe closes: that happens even if this
process is killed. Nothing here needs Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from demo.waiting import Patience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Offspring", "carries", "end_marked", "is_running", "marked"]

_MARK = "AIRFLOW_GUARD_OFFSPRING_OF"
_QUIET_S = 60.0


class Offspring:
    """The children of this process, and theirs.

    What an earlier process with the same mark has left running, because it was killed together with its
    watcher, is ended first.

    :param mark: what they are recognised by, for example the folder that they work in.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        end_marked(mark)
        self._children: list[subprocess.Popen[bytes]] = []
        # A session of its own: Ctrl-C and a closed terminal are for the process that started us.
        self._watcher = subprocess.Popen(
            [sys.executable, "-P", "-m", "demo.offspring", self.mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )

    def start(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a child in a session of its own.

        :param command: program and arguments.
        :param log: file that its output is appended to.
        :param environment: its whole environment; default: this process's.
        """
        inherited = os.environ if environment is None else environment
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # setproctitle writes over the environment otherwise, and the mark would be gone.
                env={**inherited, _MARK: self.mark, "SPT_NOENV": "1"},
            )
        self._children.append(child)
        return child

    def end(self, *, grace_s: float = 3.0) -> None:
        """End all of them: SIGTERM to the children, after a while SIGKILL to whatever is left.

        :param grace_s: seconds that they get to end by themselves.
        """
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + grace_s
        for child in self._children:
            try:
                child.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        end_marked(self.mark)
        for child in self._children:
            child.wait()
        self._children.clear()
        if self._watcher.stdin is not None and not self._watcher.stdin.closed:
            self._watcher.stdin.close()
        self._watcher.wait()


def carries(pid: int, mark: str) -> bool:
    """Whether a process runs and carries a mark: it is one that an :class:`Offspring` has started, or a child of it."""
    try:
        return is_running(pid) and psutil.Process(pid).environ().get(_MARK) == mark
    except (psutil.Error, OSError):
        return False


def marked(mark: str) -> list[psutil.Process]:
    """Return the running processes that carry a mark, and the descendants of those."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) != mark:
                continue
            family = [process, *process.children(recursive=True)]
        except (psutil.Error, OSError):
            continue  # Gone meanwhile, or somebody else's.
        found.update((member.pid, member) for member in family if member.pid != os.getpid())
    return [process for process in found.values() if is_running(process.pid)]


def end_marked(mark: str) -> None:
    """Kill whatever carries a mark; return when nothing of it runs any more.

    :raises NothingMoves: some process does not end, even when killed.
    """
    left: list[psutil.Process] = []
    patience = Patience(
        f"the processes of {mark} to end", lambda: {process.pid for process in left}, quiet_s=_QUIET_S
    )
    while left := marked(mark):
        for process in left:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=1)
        patience.check()


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and only waits to be collected does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def python_path() -> str:
    """Return the ``PYTHONPATH`` by which a child imports what lies beside this folder, and what its parent could."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(__file__).parents[1]), *([inherited] if inherited else [])])


if __name__ == "__main__":
    sys.stdin.read()
    end_marked(sys.argv[1])
