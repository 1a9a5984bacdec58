"""Databases that restart, crash, are slow, are cut off, or have no room left."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, get_args

from airflow_guard.core.errors import GuardError
from chaos.cutting import When
from chaos.faults.drawing import NothingToHit, Strike, fault
from chaos.rig import LONGEST_STALL_S

if TYPE_CHECKING:
    from demo.postgres import EmbeddedPostgres, StopMode


@fault("restart PostgreSQL of the ledger")
def restart_ledger(strike: Strike) -> str:
    """All sessions end, in order."""
    return _down(strike, strike.rig.ledger, "fast")


@fault("crash PostgreSQL of the ledger", often=2)
def crash_ledger(strike: Strike) -> str:
    """All sessions end at once; what was not committed is lost."""
    return _down(strike, strike.rig.ledger, "immediate")


@fault("restart PostgreSQL of Airflow")
def restart_metadata(strike: Strike) -> str:
    """Airflow loses all its sessions."""
    return _down(strike, strike.rig.metadata, "fast")


@fault("crash PostgreSQL of Airflow")
def crash_metadata(strike: Strike) -> str:
    """The same, without order."""
    return _down(strike, strike.rig.metadata, "immediate")


def _down(strike: Strike, server: EmbeddedPostgres, mode: StopMode) -> str:
    if server.pid is None:
        raise NothingToHit
    seconds = strike.seconds(0, 6)
    try:
        server.stop(mode)
    except GuardError:
        raise NothingToHit from None

    def up() -> None:
        for _ in range(20):
            with contextlib.suppress(GuardError):
                server.start()
                return

    strike.later(seconds, up)
    return f"{server.data_dir.name}, {mode}, down for {seconds} s"


@fault("cut at COMMIT", often=6)
def cut(strike: Strike) -> str:
    """The connection ends before, during or after a COMMIT, or the COMMIT arrives when nobody waits for it any more."""
    proxy, when = strike.rig.proxy, strike.choose(get_args(When))
    proxy.cut_at_commit(when)
    if not proxy.was_cut(10):
        proxy.disarm()
        raise NothingToHit
    if when != "held":
        return when
    seconds = strike.seconds(1, 10)

    def let_go() -> None:
        with contextlib.suppress(AssertionError):
            proxy.let_go()

    strike.later(seconds, let_go)
    return f"{when} for {seconds} s"


@fault("latency", stalls=True)
def latency(strike: Strike) -> str:
    """Whatever passes to and from the ledger is late."""
    proxy, seconds = strike.rig.proxy, strike.seconds(5, 12)
    proxy.latency_s = strike.seconds(0.1, 0.5)

    def fast() -> None:
        proxy.latency_s = 0.0

    strike.later(seconds, fast)
    return f"{proxy.latency_s} s each way, for {seconds} s"


@fault("half-open connections", stalls=True)
def half_open(strike: Strike) -> str:
    """Nothing passes and nothing ends; then it arrives late, or all is cut."""
    proxy, seconds, late = strike.rig.proxy, strike.seconds(8, LONGEST_STALL_S), strike.draw.random() < 0.5
    proxy.silence()
    strike.later(seconds, lambda: proxy.speak(late=late))
    return f"for {seconds} s, then {'all arrives late' if late else 'all is cut'}"


@fault("disk full under the ledger")
def disk_full(strike: Strike) -> str:
    """No table of the business database can grow."""
    disk = strike.rig.disk
    if disk is None:
        raise NothingToHit
    seconds = strike.seconds(3, 10)
    disk.fill()
    strike.later(seconds, disk.empty)
    return f"for {seconds} s"
