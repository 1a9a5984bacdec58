"""Real child processes that a test steps through a function.

The function calls :func:`checkpoint` where the test wants to hold it::

    def post_once(url: str) -> int:
        checkpoint("claimed")
        ...

    def test_two_at_one_key(start_worker, database):
        first = start_worker(post_once, url=database.url)
        first.wait_for("claimed")     # it stands there now
        first.pause()                 # SIGSTOP: its lease runs out
        ...
        first.resume()
        first.release("claimed")
        assert first.result() == 1

A child is forked from a process that has imported the package and has done nothing else (no threads, no
connections), as Airflow forks its tasks: a new interpreter takes a second to import as much, hundreds of times. One
that needs an environment from its first moment gets a new interpreter (``env``). A child ends when the test process
does. Time limits only end a test that hangs: nothing here waits for time to pass.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections import Counter
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar
from unittest import mock

import psutil

from demo.waiting import NothingMoves, Patience, cpu_used

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

_ROOT = Path(__file__).resolve().parent.parent
FORKED, _NEW = get_context("forkserver"), get_context("spawn")
"""For processes that are not stepped: its server has imported what they need. There is one for a test session."""
FORKED.set_forkserver_preload(
    [
        *("tests.chaos.jobs", "tests.approaches.jobs", "airflow_guard.store.migrate"),
        *("alembic.command", "psycopg", "pymysql", "sqlalchemy.dialects.mysql"),
    ]
)


class WorkerFailed(Exception):
    """The function of a worker raised, or its process ended without an answer.

    :param message: what happened, with the child's traceback and output.
    :param error: the exception that the function raised; ``None`` if it cannot be sent, or there was none.
    """

    def __init__(self, message: str, error: BaseException | None = None) -> None:
        super().__init__(message)
        self.error = error


class Worker:
    """A child process that runs one function. Made by :meth:`start`."""

    _living: ClassVar[weakref.WeakSet[Worker]] = weakref.WeakSet()

    def __init__(self, process: BaseProcess, channel: Connection, output: IO[str]) -> None:
        self._process = process
        self._channel = channel
        self._output = output
        self._news = threading.Condition()
        self._reached: Counter[str] = Counter()
        self._ended = False
        self._answer: tuple[Any, ...] | None = None
        self._living.add(self)
        threading.Thread(target=self._listen, daemon=True).start()

    @classmethod
    def start(
        cls, function: Callable[..., Any] | str, /, *, env: dict[str, str] | None = None, **kwargs: Any
    ) -> Worker:
        """Start a process that calls a function.

        :param function: a function of a module, or its path as ``module:name``.
        :param env: variables that the child's environment has in addition, from the start of its interpreter.
        :param kwargs: what it is called with; they must be picklable.
        """
        path = function if isinstance(function, str) else _path_of(function)
        ours, theirs = Pipe()
        output = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - kept for as long as the worker
        inherited = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *([inherited] if inherited else [])]),
            **(env or {}),
        }
        process = (_NEW if env else FORKED).Process(
            target=_child_main, args=(theirs, environment, output.name), daemon=True
        )
        with mock.patch.dict(os.environ, environment):
            process.start()
        theirs.close()
        ours.send((path, kwargs))
        return cls(process, ours, output)

    @property
    def pid(self) -> int:
        """The process id of the child."""
        assert self._process.pid is not None
        return self._process.pid

    def wait_for(self, label: str, *, at_most_s: float | None = None) -> None:
        """Return when the function stands at a checkpoint of this label; each arrival counts once.

        :param at_most_s: for a test that expects that it does not come; otherwise as long as the child moves.
        :raises WorkerFailed: it ended before.
        :raises TimeoutError: it has not come there.
        """
        with self._news:
            self._wait_for(
                lambda: bool(self._reached[label]) or self._ended, f"it to reach {label!r}", at_most_s
            )
            if self._reached[label]:
                self._reached[label] -= 1
                return
        raise self._failure(f"ended before it reached {label!r}")

    def release(self, label: str, *, times: int = 1) -> None:
        """Let the function pass checkpoints of this label, now or when it comes there.

        :param times: how many.
        """
        self._send(("release", label, times))

    def run_on(self) -> None:
        """Let the function pass all checkpoints from now on."""
        self._send(("run_on",))

    def kill(self) -> None:
        """End the child with SIGKILL, and return when it is gone."""
        self._process.kill()
        self._process.join()
        with self._news:
            self._news.wait_for(lambda: self._ended)

    def pause(self) -> None:
        """Stop the child with SIGSTOP, and return when all its threads stand still."""
        os.kill(self.pid, signal.SIGSTOP)
        child = psutil.Process(self.pid)
        while child.status() != psutil.STATUS_STOPPED:
            threading.Event().wait(0.002)

    def resume(self) -> None:
        """Let a stopped child go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Ask the child to end (SIGTERM), and return at once."""
        self._process.terminate()

    def result(self) -> Any:
        """Wait for the function to end and return what it returned.

        :raises WorkerFailed: it raised, its result cannot be pickled, or the process died.
        :raises TimeoutError: it has not ended, and does nothing.
        """
        with self._news:
            self._wait_for(lambda: self._answer is not None or self._ended, "it to end")
        if self._answer is not None and self._answer[0] == "returned":
            return self._answer[1]
        raise self._failure("failed")

    def _wait_for(self, done: Callable[[], bool], what: str, at_most_s: float | None = None) -> None:
        if at_most_s is not None:
            if not self._news.wait_for(done, at_most_s):
                msg = f"waited {at_most_s} s for {what}"
                raise TimeoutError(msg)
            return
        patience = Patience(
            what, lambda: (cpu_used(self.pid), sum(self._reached.values()), len(self.output()))
        )
        while not self._news.wait_for(done, 0.5):
            try:
                patience.check()
            except NothingMoves as error:
                msg = f"{error}\n{self.output()}"
                raise NothingMoves(msg) from None

    def output(self) -> str:
        """Return what the child has printed."""
        self._output.seek(0)
        return self._output.read()

    def close(self) -> None:
        """End the child if it still runs, and let go of all that belongs to it."""
        self.kill()
        self._channel.close()
        self._output.close()
        self._living.discard(self)

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._channel.send(message)
        except OSError as error:
            raise self._failure("ended before it was released") from error

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.recv()
            except (EOFError, OSError):
                break
            with self._news:
                if message[0] == "reached":
                    self._reached[message[1]] += 1
                else:
                    self._answer = message
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _failure(self, what: str) -> WorkerFailed:
        if self._answer is not None and self._answer[0] == "raised":
            _, error, text = self._answer
            return WorkerFailed(f"the worker {what}:\n{text}\n{self.output()}", error)
        if self._answer is not None:
            return WorkerFailed(f"the worker {what}: it returned {self._answer[1]!r}\n{self.output()}")
        self._process.join()
        return WorkerFailed(f"the worker {what}: exit code {self._process.exitcode}\n{self.output()}")


@atexit.register
def _kill_living() -> None:
    for worker in list(Worker._living):
        worker._process.kill()


def checkpoint(label: str) -> None:
    """Report that a worker is here and wait until the test releases it; elsewhere do nothing."""
    if _child is not None:
        _child.stop_at(label)


def is_running(pid: int) -> bool:
    """Say whether a process runs; one that has ended and only waits to be collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class _Child:
    """The child's end of the channel."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._news = threading.Condition()
        self._permits: Counter[str] = Counter()
        self._run_on = False

    def send(self, message: tuple[Any, ...]) -> None:
        with self._sending:
            self._channel.send(message)

    def stop_at(self, label: str) -> None:
        self.send(("reached", label))
        with self._news:
            self._news.wait_for(lambda: self._run_on or self._permits[label])
            if not self._run_on:
                self._permits[label] -= 1

    def listen(self) -> None:
        while True:
            try:
                message = self._channel.recv()
            except (EOFError, OSError):
                os._exit(1)  # the test process is gone
            with self._news:
                if message[0] == "release":
                    self._permits[message[1]] += message[2]
                else:
                    self._run_on = True
                self._news.notify_all()


_child: _Child | None = None


def _child_main(channel: Connection, environment: dict[str, str], output: str) -> None:
    global _child  # noqa: PLW0603 - one process, one channel
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(_ROOT)
    printed = os.open(output, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(printed, number)
    path, kwargs = channel.recv()
    _child = _Child(channel)
    threading.Thread(target=_child.listen, daemon=True).start()
    try:
        module, _, name = path.partition(":")
        answer = ("returned", getattr(importlib.import_module(module), name)(**kwargs))
        pickle.dumps(answer)
    except BaseException as error:
        answer = ("raised", _sendable(error), traceback.format_exc())
    sys.stdout.flush()
    _child.send(answer)


def _sendable(error: BaseException) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error


def _path_of(function: Callable[..., Any]) -> str:
    if "." in function.__qualname__ or "<" in function.__qualname__:
        msg = f"{function.__qualname__} is no function of a module; a new process cannot find it"
        raise ValueError(msg)
    return f"{function.__module__}:{function.__qualname__}"
