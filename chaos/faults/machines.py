"""What happens to machines and deployments: wrong clocks, new code, another host."""

from __future__ import annotations

import contextlib
import re
import signal

import psutil

from chaos.faults.drawing import NothingToHit, Strike, fault

_EDITION = re.compile(r"^EDITION = (\d+)$", re.MULTILINE)


@fault("clocks of workers hours off", often=2)
def clocks_off(strike: Strike) -> str:
    """New tasks live in another hour."""
    skew, seconds = strike.rig.skew_file, strike.seconds(8, 20)
    skew.touch()
    strike.after(seconds, lambda: skew.unlink(missing_ok=True))
    return f"of tasks that start within {seconds} s"


@fault("DAG file edited while it runs")
def edit(strike: Strike) -> str:
    """The code and the parameters of the next tasks are others."""
    path = strike.rig.dag_file
    text = path.read_text()
    found = _EDITION.search(text)
    if found is None:
        raise NothingToHit
    number = int(found[1]) + 1
    text = _EDITION.sub(f"EDITION = {number}", text)
    text = re.sub(r"max_workers=\d", f"max_workers={strike.choose((1, 4, 8))}", text)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return f"edition {number}"


@fault("deploy with another host name")
def deploy(strike: Strike) -> str:
    """A scheduler ends and comes back on another host, and its tasks with it."""
    rig = strike.rig
    name = strike.choose(("scheduler-1", "scheduler-2"))
    component = rig.airflow.components[name]
    if component.process.poll() is not None:
        raise NothingToHit
    rig.host = f"host-{strike.draw.randrange(2, 1000)}"
    with contextlib.suppress(psutil.Error):
        component.process.send_signal(signal.SIGTERM)
    return f"{name} ends with SIGTERM and comes back as {rig.host}"
