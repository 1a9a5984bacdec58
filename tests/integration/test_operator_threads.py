"""What the threads of a task may do: talk to Airflow, each in its turn."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.airflow_compat import let_threads_talk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def supervisor() -> Iterator[Any]:
    """A task's line to its supervisor, which answers a variable with its own name."""
    from airflow.sdk.execution_time.comms import CommsDecoder

    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_answer, args=(theirs,), daemon=True)
    thread.start()
    yield CommsDecoder(socket=ours)
    ours.close()
    thread.join(10)
    theirs.close()


def _answer(line: socket.socket) -> None:
    import msgspec
    from airflow.sdk.execution_time.comms import _RequestFrame, _ResponseFrame

    decoder = msgspec.msgpack.Decoder(_RequestFrame)
    with line.makefile("rb") as stream:
        while length := stream.read(4):
            frame = decoder.decode(stream.read(int.from_bytes(length, "big")))
            key = frame.body["key"]
            answer = {"type": "VariableResult", "key": key, "value": key}
            line.sendall(_ResponseFrame(id=frame.id, body=answer).as_bytes())


def test_each_thread_gets_its_own_answer(supervisor: Any) -> None:
    from airflow.sdk.execution_time.comms import GetVariable

    let_threads_talk()
    keys = [f"key_{number}" for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda key: supervisor.send(GetVariable(key=key)).value, keys))
    assert answers == keys
