"""The demo's receiver, as a process: it counts every call, and never loses or merges one.

Only loopback is used.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from demo.receiver import Calls, Receiver, ReceiverClient, ReceiverError, read_journal
from demo.waiting import QUIET_S, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
ONE = {"statement_no": "DE1/2026-01-05/005", "closing": "1.00"}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "journal.jsonl", timeout_s=30) as running:
        yield running


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def sender(address: str, key: str) -> subprocess.Popen[str]:
    """A process that notifies about ONE, as a task would."""
    code = (
        "import json, sys; from demo.receiver import ReceiverClient; "
        "ReceiverClient(sys.argv[1]).notify(json.loads(sys.argv[2]), sys.argv[3])"
    )
    return python(code, address, json.dumps(ONE), key)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def eventually(condition: Callable[[], bool]) -> None:
    wait(condition, "a condition", every_s=0.01)


def answers(address: str) -> bool:
    try:
        ReceiverClient(address, timeout_s=5).calls()
    except OSError:
        return False
    return True


def test_it_counts_a_repeated_call_instead_of_hiding_it(receiver: Receiver) -> None:
    first = receiver.notify(ONE, "key-1")
    second = receiver.notify(ONE, "key-1")
    receiver.notify(ONE, "key-2")
    assert first != second
    expected = Calls(3, {"key-1": 2, "key-2": 1}, {ONE["statement_no"]: 3})
    assert receiver.calls() == expected
    assert read_journal(receiver.journal) == expected


def test_a_call_is_in_the_journal_before_it_is_answered(receiver: Receiver) -> None:
    receiver.notify(ONE, "key-1")
    (line,) = receiver.journal.read_text().splitlines()
    entry = json.loads(line)
    assert {name: entry[name] for name in ("key", "statement_no")} == {
        "key": "key-1",
        "statement_no": ONE["statement_no"],
    }
    assert entry["time"].endswith("+00:00")


def test_it_says_whether_a_key_has_arrived(receiver: Receiver) -> None:
    receiver.notify(ONE, "a key/with=odd&characters?")
    assert receiver.notified("a key/with=odd&characters?")
    assert not receiver.notified("a key")


def test_calls_at_the_same_moment_are_all_counted(receiver: Receiver) -> None:
    documents = [({"statement_no": f"S{n % 10}"}, f"key-{n}") for n in range(200)]
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda call: receiver.notify(*call), documents))
    assert len(set(ids)) == 200
    assert receiver.calls().by_statement == {f"S{n}": 20 for n in range(10)}
    assert read_journal(receiver.journal) == receiver.calls()


def test_a_sender_killed_after_the_call_arrived_leaves_it_counted(receiver: Receiver) -> None:
    receiver.hold(ONE["statement_no"], "after")
    process = sender(receiver.address, "key-1")
    receiver.wait_until_held(ONE["statement_no"])
    assert receiver.notified("key-1")
    kill(process)
    receiver.release()
    assert receiver.held() == []
    assert receiver.calls().by_key == {"key-1": 1}


def test_a_sender_killed_before_the_call_arrived_leaves_nothing_if_the_call_is_lost(
    receiver: Receiver,
) -> None:
    receiver.hold(ONE["statement_no"], "before")
    process = sender(receiver.address, "key-1")
    receiver.wait_until_held(ONE["statement_no"])
    kill(process)
    receiver.release(deliver=False)
    assert not receiver.notified("key-1")
    receiver.notify(ONE, "key-1")
    assert receiver.calls().by_key == {"key-1": 1}


def test_a_call_that_was_on_its_way_arrives_after_its_sender_is_dead(receiver: Receiver) -> None:
    receiver.hold(ONE["statement_no"], "before")
    process = sender(receiver.address, "key-1")
    receiver.wait_until_held(ONE["statement_no"])
    kill(process)
    assert not receiver.notified("key-1")
    receiver.release()
    eventually(lambda: receiver.notified("key-1"))


def test_an_answer_that_is_lost_fails_the_sender_although_the_call_counts(receiver: Receiver) -> None:
    receiver.hold(ONE["statement_no"], "after")
    raised: list[BaseException] = []

    def send() -> None:
        try:
            receiver.notify(ONE, "key-1")
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    receiver.wait_until_held(ONE["statement_no"])
    receiver.release(deliver=False)
    thread.join(30)
    assert len(raised) == 1
    assert receiver.calls().by_key == {"key-1": 1}


def test_a_hold_stops_only_its_statement_and_the_others_go_on(receiver: Receiver) -> None:
    receiver.hold("another", "before")
    receiver.notify(ONE, "key-1")
    assert receiver.calls().total == 1


def test_waiting_for_a_call_that_does_not_come_ends(receiver: Receiver) -> None:
    with pytest.raises(TimeoutError, match="a call for nobody"):
        receiver.wait_until_held("nobody", quiet_s=0)


def request(
    address: str, method: str, path: str, body: str, headers: dict[str, str]
) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=QUIET_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.0 200 OK\r\nContent-Length: 30\r\n\r\n", b'HTTP/1.0 200 OK\r\n\r\n{"id": "no', b"?\r\n"],
)
def test_an_answer_that_is_cut_off_is_a_failed_connection_wherever_it_is_cut(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def cut() -> None:
            with server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=cut)
        thread.start()
        with pytest.raises(ConnectionError):
            ReceiverClient(f"http://127.0.0.1:{server.getsockname()[1]}").calls()
        thread.join()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "reason"),
    [
        ("POST", "/notify", '{"statement_no": "S"}', {}, 400, "Idempotency-Key is missing"),
        (
            "POST",
            "/notify",
            '{"statement_no": "S"}',
            {"Idempotency-Key": " "},
            400,
            "Idempotency-Key is missing",
        ),
        ("POST", "/notify", "{}", {"Idempotency-Key": "k"}, 400, "no statement_no"),
        ("POST", "/notify", '{"statement_no": 5}', {"Idempotency-Key": "k"}, 400, "no statement_no"),
        ("POST", "/notify", "[]", {"Idempotency-Key": "k"}, 400, "not a JSON object"),
        ("POST", "/notify", "{", {"Idempotency-Key": "k"}, 400, "not JSON"),
        ("POST", "/hold", '{"statement_no": "S", "point": "during"}', {}, 400, '"before" or "after"'),
        ("POST", "/elsewhere", "{}", {}, 404, "nothing at /elsewhere"),
        ("GET", "/elsewhere", "", {}, 404, "nothing at /elsewhere"),
    ],
)
def test_a_call_that_cannot_be_used_is_refused_and_not_counted(
    receiver: Receiver, method: str, path: str, body: str, headers: dict[str, str], status: int, reason: str
) -> None:
    got, answer = request(receiver.address, method, path, body, headers)
    assert (got, reason in answer["error"]) == (status, True), answer
    assert receiver.calls().total == 0


def test_a_refusal_reaches_the_sender_as_an_error_with_the_reason(receiver: Receiver) -> None:
    with pytest.raises(ReceiverError, match="no statement_no"):
        receiver.notify({}, "key-1")


def test_a_restarted_receiver_goes_on_counting_where_it_was(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with Receiver(journal) as before:
        before.notify(ONE, "key-1")
    with journal.open("a") as file:
        file.write('{"time": "2026-01-05T00:00')  # It was killed while it wrote this.
    assert read_journal(journal).total == 1
    with Receiver(journal) as after:
        assert after.notified("key-1")
        after.notify(ONE, "key-1")
        assert after.calls().by_key == {"key-1": 2}
    assert read_journal(journal).by_key == {"key-1": 2}


def test_no_journal_yet_is_no_call(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none").total == 0


def test_it_listens_on_loopback_and_no_proxy_comes_between(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert receiver.address.startswith("http://127.0.0.1:")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert receiver.calls().total == 0


def test_stopping_ends_the_process_and_can_be_repeated(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "journal.jsonl")
    receiver.hold(ONE["statement_no"], "before")
    process = sender(receiver.address, "key-1")
    receiver.wait_until_held(ONE["statement_no"])
    receiver.stop()
    receiver.stop()
    assert not answers(receiver.address)
    process.communicate(timeout=QUIET_S)
    assert process.returncode == 1, "a call that hangs ends with the receiver"


def test_it_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    parent = python(
        "import sys, time; from pathlib import Path; from demo.receiver import Receiver; "
        "print(Receiver(Path(sys.argv[1])).address, flush=True); time.sleep(600)",
        str(tmp_path / "journal.jsonl"),
    )
    assert parent.stdout
    address = parent.stdout.readline().strip()
    assert answers(address)
    kill(parent)
    eventually(lambda: not answers(address))


def test_a_port_that_is_taken_is_said(receiver: Receiver, tmp_path: Path) -> None:
    with pytest.raises(ReceiverError, match="exit code 1"):
        Receiver(tmp_path / "other.jsonl", port=urlsplit(receiver.address).port or 0)


def test_it_runs_by_hand_until_it_is_told_to_end(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.receiver", "--journal", str(tmp_path / "journal.jsonl")],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    address = process.stdout.readline().removeprefix("receiver ready at ").strip()
    ReceiverClient(address).notify(ONE, "key-1")
    process.terminate()
    process.communicate(timeout=QUIET_S)
    assert process.returncode == 0
