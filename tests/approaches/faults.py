"""What goes wrong with a job: each fault is brought about in the same way whatever the approach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.approaches.jobs import APPROACHES, ASKS, REFUSED, Approach, work
from tests.approaches.place import Listed, Place, Start, share_of
from tests.processes import Worker, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

PAYMENT: Listed = ("PAY-1", "10.00")
OWNER = share_of(PAYMENT[0], 2)


@dataclass
class Scene:
    """One job under one approach.

    :param name: of the approach.
    :param start_worker: starts a process.
    """

    name: str
    place: Place
    start_worker: Callable[..., Worker]

    def __post_init__(self) -> None:
        self.approach: Approach = APPROACHES[self.name](self.place)
        self.first = Start((PAYMENT,), machine=OWNER)
        self.ends: list[str] = []

    @property
    def asked(self) -> bool:
        """Whether a start has failed in a way that asks a person."""
        return ASKS in self.ends

    def now(self, start: Start) -> str:
        """Run a start in this process."""
        self.ends.append(self.approach.run(start))
        return self.ends[-1]

    def process(self, start: Start) -> Worker:
        """Start a process, which waits before it does anything."""
        worker = self.start_worker(work, approach=self.name, place=replace(self.place), start=start)
        worker.wait_for("start")
        return worker

    def at_its_effect(self, label: str = "before") -> Worker:
        """Return a process that stands just before its effect, or has just had it."""
        worker = self.process(self.first)
        worker.release("start")
        worker.wait_for("before")
        if label != "before":
            worker.release("before")
            worker.wait_for(label)
        return worker

    def end(self, *workers: Worker) -> None:
        """Let processes go on to their ends."""
        for worker in workers:
            worker.run_on()
        self.ends += [worker.result() for worker in workers]


def two_machines(scene: Scene) -> None:
    """Two machines get one trigger, at the same moment."""
    _both(scene, scene.first, replace(scene.first, machine=1 - OWNER))


def machine_added(scene: Scene) -> None:
    """Two machines get one trigger, and one of them knows already that there are three of them."""
    _both(scene, scene.first, replace(scene.first, machine=share_of(PAYMENT[0], 3), machines=3))


def overlapping_tries(scene: Scene) -> None:
    """An orphaned try goes on, and the next try of the same task starts beside it."""
    worker = scene.at_its_effect()
    scene.now(replace(scene.first, try_number=2))
    scene.end(worker)


def outlasting(scene: Scene) -> None:
    """The work takes longer than the lock lives, and another start comes."""
    worker = scene.at_its_effect()
    scene.approach.outlast()
    scene.now(replace(scene.first, try_number=2))
    scene.end(worker)


def paused(scene: Scene) -> None:
    """The process stands still for longer than the lock lives, another start comes, then it goes on."""
    worker = scene.at_its_effect()
    worker.pause()
    scene.approach.lapse()
    scene.now(replace(scene.first, try_number=2))
    worker.resume()
    scene.end(worker)


def flushed(scene: Scene) -> None:
    """The lock server loses its data while the job works, and another start comes."""
    worker = scene.at_its_effect()
    scene.place.redis.flushall()
    scene.now(replace(scene.first, try_number=2))
    scene.end(worker)


def redelivered(scene: Scene) -> None:
    """A timeout gives the try up while it works on; the job is delivered again until a try reports success."""
    worker = scene.at_its_effect()
    second = scene.now(replace(scene.first, try_number=2))
    scene.end(worker)
    if second == REFUSED:
        scene.now(replace(scene.first, try_number=3))


def killed_before(scene: Scene) -> None:
    """The process is killed just before its effect, and the job is retried later."""
    _killed(scene, "before")


def killed_after(scene: Scene) -> None:
    """The effect has happened, the process is killed before it says so, and the job is retried later."""
    _killed(scene, "after")


def rerun_by_hand(scene: Scene) -> None:
    """Somebody starts the job again after it has ended."""
    scene.now(scene.first)
    scene.now(replace(scene.first, run_id="manual__1", run_type="manual"))


def cleared(scene: Scene) -> None:
    """The task is cleared after its success."""
    scene.now(scene.first)
    scene.now(replace(scene.first, try_number=2))


def backfilled(scene: Scene) -> None:
    """A backfill takes in a date that is done."""
    scene.now(scene.first)
    scene.now(replace(scene.first, run_type="backfill", try_number=2))


def listed_again(scene: Scene) -> None:
    """The run of the next day lists the payment once more."""
    _next_day(scene, PAYMENT)


def listed_changed(scene: Scene) -> None:
    """The run of the next day lists the payment once more, with another amount."""
    _next_day(scene, (PAYMENT[0], "11.00"))


def listed_twice(scene: Scene) -> None:
    """One list has the payment twice."""
    scene.now(replace(scene.first, documents=(PAYMENT, PAYMENT)))


def restored(scene: Scene) -> None:
    """The database is restored as it was before the job, and the job runs again."""
    scene.now(scene.first)
    scene.approach.restore()
    scene.now(replace(scene.first, try_number=2))


FAULTS: dict[str, Callable[[Scene], None]] = {
    each.__name__: each
    for each in (
        two_machines, machine_added, overlapping_tries, outlasting, paused, flushed, redelivered, killed_before,
        killed_after, rerun_by_hand, cleared, backfilled, listed_again, listed_changed, listed_twice, restored,
    )
}  # fmt: skip


def _both(scene: Scene, first: Start, second: Start) -> None:
    workers = [scene.process(first), scene.process(second)]
    for worker in workers:
        worker.release("start")
    standing = []
    for worker in workers:
        try:
            worker.wait_for("before")  # beside the other one, if that stands there too
            standing.append(worker)
        except WorkerFailed:  # it has ended without an effect; if it has raised, this raises too
            scene.ends.append(worker.result())
    scene.end(*standing)


def _killed(scene: Scene, label: str) -> None:
    scene.at_its_effect(label).kill()
    scene.approach.lapse()
    if hasattr(scene.approach, "settle"):
        scene.approach.settle()
    scene.now(replace(scene.first, try_number=2))


def _next_day(scene: Scene, payment: Listed) -> None:
    scene.now(scene.first)
    scene.now(replace(scene.first, documents=(payment,), day=scene.first.next_day, run_id="scheduled__2"))
