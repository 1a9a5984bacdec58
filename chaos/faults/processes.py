"""Processes that are killed, and processes that stand still."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from airflow_guard.core.errors import GuardError
from chaos.faults.drawing import NothingToHit, Strike, described, fault
from chaos.rig import HEARTBEAT_TIMEOUT_S, LEASE_S, LONGEST_STALL_S

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOKS = 15


@fault("kill -9 task", often=5)
def kill_task(strike: Strike) -> str:
    """The process that executes a task is gone at once."""
    row = strike.choose(strike.rig.running_tries())
    strike.rig.struck.add(row["pid"])
    send([row["pid"]], signal.SIGKILL)
    return f"{described(row)}, process {row['pid']}"


@fault("kill -9 supervisor", often=3)
def kill_supervisor(strike: Strike) -> str:
    """The task goes on alone, and Airflow takes it for dead."""
    row = strike.choose(strike.rig.running_tries())
    strike.rig.struck.add(row["pid"])
    send([_parent(row["pid"])], signal.SIGKILL)
    return f"{described(row)}, the supervisor of process {row['pid']}"


@fault("SIGSTOP task, longer than the lease", stalls=True, often=2)
def stop_task(strike: Strike) -> str:
    """A process stands still while others find its lease over, and then goes on."""
    row, seconds = strike.choose(strike.rig.running_tries()), strike.seconds(LEASE_S + 2, LEASE_S + 8)
    _stand_still(strike, [row["pid"]], seconds)
    return f"{described(row)}, process {row['pid']}, {seconds} s"


@fault("SIGSTOP task and supervisor, longer than the heartbeat timeout", stalls=True)
def stop_supervised(strike: Strike) -> str:
    """Airflow starts the next try, and then the first goes on."""
    row, seconds = (
        strike.choose(strike.rig.running_tries()),
        strike.seconds(HEARTBEAT_TIMEOUT_S + 2, LONGEST_STALL_S),
    )
    _stand_still(strike, [_parent(row["pid"]), row["pid"]], seconds)
    return f"{described(row)}, process {row['pid']} and its supervisor, {seconds} s"


@fault("SIGSTOP task, and another run comes for its work", stalls=True, often=2)
def stop_overtaken(strike: Strike) -> str:
    """The other finds the lease over, takes the keys, and works on them; then the first goes on."""
    row = strike.choose(_in_the_middle(strike))
    seconds = strike.seconds(LONGEST_STALL_S - 2, LONGEST_STALL_S)
    conf = {"business_date": row["business_date"].isoformat(), "cycle": row["cycle"]}
    _stand_still(strike, [row["pid"]], seconds)
    try:
        other = strike.rig.client.trigger(row["dag_id"], conf=conf)
    except (GuardError, httpx.HTTPError):
        other = "nobody, Airflow does not answer"
    return f"{described(row)}, process {row['pid']}, {seconds} s; {other}"


def _in_the_middle(strike: Strike) -> list[dict[str, Any]]:
    """Return tries that are in the middle of an effect; all of them, if there is none for a while."""
    rows: list[dict[str, Any]] = []
    for _ in range(_LOOKS):
        rows = [row for row in strike.rig.running_tries() if row["map_index"] < 0]
        begun = [row for row in rows if row["begun"]]
        if begun:
            return begun
        time.sleep(0.2)
    return rows


@fault("kill -9 scheduler")
def kill_scheduler(strike: Strike) -> str:
    """The tasks of its executor go on without it."""
    return kill_component(strike, ("scheduler-1", "scheduler-2"))


@fault("kill -9 triggerer")
def kill_triggerer(strike: Strike) -> str:
    """Who waits there is taken over by the next."""
    return kill_component(strike, ("triggerer",))


@fault("kill -9 dag-processor")
def kill_dag_processor(strike: Strike) -> str:
    """No DAG is read, and no callback of a killed task is called."""
    return kill_component(strike, ("dag-processor",))


@fault("kill -9 api-server")
def kill_api_server(strike: Strike) -> str:
    """No supervisor can say anything."""
    return kill_component(strike, ("api-server",))


@fault("SIGSTOP api-server, longer than the heartbeat timeout", stalls=True)
def freeze_api_server(strike: Strike) -> str:
    """Airflow takes all tasks for dead that run."""
    seconds = strike.seconds(HEARTBEAT_TIMEOUT_S + 1, LONGEST_STALL_S)
    return freeze_component(strike, "api-server", seconds)


@fault("SIGSTOP scheduler and its tasks", stalls=True)
def freeze_scheduler(strike: Strike) -> str:
    """A machine that is paused: scheduler, supervisors and tasks."""
    name, seconds = strike.choose(("scheduler-1", "scheduler-2")), strike.seconds(10, LONGEST_STALL_S)
    return freeze_component(strike, name, seconds)


def kill_component(strike: Strike, names: Sequence[str]) -> str:
    """Kill one of these components; it comes back after a while."""
    name = strike.choose(names)
    component = strike.rig.airflow.components[name]
    if component.process.poll() is not None:
        raise NothingToHit
    down = strike.seconds(0, 6)
    strike.rig.hold_down(name, down)
    family = [component.pid]
    if name == "api-server":  # its workers are processes of their own, and would go on
        family += [child.pid for child in psutil.Process(component.pid).children(recursive=True)]
    send(family, signal.SIGKILL)
    return f"{name}, process {component.pid}, down for {down} s"


def freeze_component(strike: Strike, name: str, seconds: float) -> str:
    """Let a component and all its children stand still."""
    component = strike.rig.airflow.components[name]
    if component.process.poll() is not None:
        raise NothingToHit
    family = [component.pid, *(child.pid for child in psutil.Process(component.pid).children(recursive=True))]
    _stand_still(strike, family, seconds)
    return f"{name}, {len(family)} processes, {seconds} s"


def _stand_still(strike: Strike, pids: Sequence[int], seconds: float) -> None:
    send(pids, signal.SIGSTOP)

    def go_on() -> None:
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).send_signal(signal.SIGCONT)

    strike.later(seconds, go_on)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes.

    :raises NothingToHit: one of them is gone.
    """
    try:
        for pid in pids:
            psutil.Process(pid).send_signal(number)
    except psutil.Error:
        raise NothingToHit from None


def _parent(pid: int) -> int:
    try:
        parent = psutil.Process(pid).parent()
    except psutil.Error:
        parent = None
    if parent is None or parent.pid <= 1:
        raise NothingToHit
    return parent.pid
