"""The helper that steps child processes does what the race tests rely on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.waiting import wait
from tests.processes import Worker, WorkerFailed, checkpoint, is_running

if TYPE_CHECKING:
    from collections.abc import Callable

    StartWorker = Callable[..., Worker]


def two_steps(path: str) -> int:
    with Path(path).open("a") as file:
        for step in ("first", "second"):
            checkpoint(step)
            print(step, file=file, flush=True)
    return os.getpid()


def in_two_threads() -> None:
    threads = [threading.Thread(target=checkpoint, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def echo(value: object) -> object:
    return value


def refuse() -> None:
    print("about to refuse")
    msg = "no such account"
    raise LookupError(msg)


def return_a_lock() -> object:
    return threading.Lock()


def exit_silently() -> None:
    os._exit(3)


def tick(path: str) -> None:
    with Path(path).open("a") as file:
        while True:
            file.write(".")
            file.flush()
            checkpoint("ticked")


def start_a_worker_and_die() -> None:
    worker = Worker.start(two_steps, path=os.devnull)
    worker.wait_for("first")
    print(worker.pid, flush=True)
    os._exit(0)


def test_stands_at_each_checkpoint_until_released(start_worker: StartWorker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = start_worker(two_steps, path=str(log))
    worker.wait_for("first")
    assert log.read_text() == ""
    worker.release("first")
    worker.wait_for("second")
    assert log.read_text() == "first\n"
    worker.release("second")
    assert worker.result() == worker.pid
    assert log.read_text() == "first\nsecond\n"


def test_released_beforehand_it_does_not_stand(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(two_steps, path=str(tmp_path / "log"))
    worker.release("second")
    worker.release("first")
    assert worker.result() == worker.pid


def test_run_on_opens_all_checkpoints(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("tests.unit.test_processes:two_steps", path=str(tmp_path / "log"))
    worker.wait_for("first")
    worker.run_on()
    assert worker.result() == worker.pid


def test_threads_of_a_worker_stand_separately(start_worker: StartWorker) -> None:
    worker = start_worker(in_two_threads)
    worker.wait_for("right")
    worker.wait_for("left")
    worker.release("left")
    worker.release("right")
    assert worker.result() is None


@pytest.mark.parametrize("value", [None, 0, "", Decimal("10.00"), {"a": [1, None]}])
def test_values_go_there_and_back(start_worker: StartWorker, value: object) -> None:
    assert start_worker(echo, value=value).result() == value


def test_an_exception_comes_back_with_its_traceback_and_output(start_worker: StartWorker) -> None:
    with pytest.raises(WorkerFailed, match=r"(?s)in refuse.*no such account.*about to refuse") as caught:
        start_worker(refuse).result()
    assert isinstance(caught.value.error, LookupError)


def test_a_result_that_cannot_be_sent_is_an_error(start_worker: StartWorker) -> None:
    with pytest.raises(WorkerFailed, match="cannot pickle"):
        start_worker(return_a_lock).result()


def test_waiting_for_a_dead_worker_fails_at_once(start_worker: StartWorker) -> None:
    with pytest.raises(WorkerFailed, match="ended before it reached 'never': exit code 3"):
        start_worker(exit_silently).wait_for("never")


def test_a_killed_worker_has_no_result(start_worker: StartWorker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = start_worker(two_steps, path=str(log))
    worker.wait_for("first")
    worker.release("first")
    worker.wait_for("second")
    worker.kill()
    with pytest.raises(WorkerFailed, match="exit code -9"):
        worker.result()
    with pytest.raises(WorkerFailed, match="ended before it was released"):
        worker.release("second")
    assert log.read_text() == "first\n"


def test_a_paused_worker_goes_on_only_when_resumed(start_worker: StartWorker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = start_worker(tick, path=str(log))
    worker.wait_for("ticked")
    worker.pause()
    worker.release("ticked")
    with pytest.raises(TimeoutError, match="to reach 'ticked'"):
        worker.wait_for("ticked", at_most_s=0.2)
    assert log.read_text() == "."
    worker.resume()
    worker.wait_for("ticked")
    assert log.read_text() == ".."


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    code = "from tests.unit.test_processes import start_a_worker_and_die as f; f()"
    starter = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    wait(lambda: not is_running(int(starter.stdout)), "the worker to end")


def test_a_function_that_a_new_process_cannot_find_is_refused() -> None:
    with pytest.raises(ValueError, match="no function of a module"):
        Worker.start(lambda: None)


def test_outside_a_worker_a_checkpoint_does_nothing() -> None:
    checkpoint("nobody waits here")
