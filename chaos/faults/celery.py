"""What happens to Celery: workers that are killed, a broker that forgets.

A third fault lasts as long as the rig: the broker's visibility timeout is shorter than a task, so the task of a worker that
stands still is given to a second one.
"""

from __future__ import annotations

import signal

import psutil

from chaos.broker import WORKERS
from chaos.faults.drawing import NothingToHit, Strike, fault
from chaos.faults.processes import freeze_component, kill_component, send


@fault("kill -9 worker", celery=True, often=2)
def kill_worker(strike: Strike) -> str:
    """The worker's main process is gone; its tasks may go on."""
    return kill_component(strike, WORKERS)


@fault("kill -9 worker and all its tasks", celery=True)
def kill_machine(strike: Strike) -> str:
    """A machine that is gone."""
    name = strike.choose(WORKERS)
    component = strike.rig.airflow.components[name]
    try:
        family = [child.pid for child in psutil.Process(component.pid).children(recursive=True)]
    except psutil.Error:
        raise NothingToHit from None
    down = strike.seconds(0, 8)
    strike.rig.hold_down(name, down)
    strike.rig.struck.update(family)
    send([component.pid, *family], signal.SIGKILL)
    return f"{name}, {len(family) + 1} processes, down for {down} s"


@fault("SIGSTOP worker and its tasks", celery=True, stalls=True)
def freeze_worker(strike: Strike) -> str:
    """A machine that is paused, longer than the broker waits."""
    return freeze_component(strike, strike.choose(WORKERS), strike.seconds(8, 20))


@fault("flush Redis", celery=True, often=2)
def flush(strike: Strike) -> str:
    """What was queued is forgotten."""
    if strike.rig.broker is None or not strike.rig.broker.flush():
        raise NothingToHit
    return "everything that was queued"
