"""When a difference between two sides has settled."""

from __future__ import annotations

import pytest

from airflow_guard.core.checks import Progress, Step, step_after

A, B = "a" * 32, "b" * 32


def steps(looks: list[str | None], settle_pokes: int) -> list[Step]:
    """Return the step after each look; ``"error"`` is a look that could not read a side."""
    progress, found = Progress(), []
    for look in looks:
        progress = progress.failed("down") if look == "error" else progress.saw(look)
        found.append(
            step_after(progress, compared=look != "error", settle_pokes=settle_pokes, time_over=False)
        )
    return found


@pytest.mark.parametrize(
    ("looks", "settle_pokes", "last"),
    [
        ([None], 3, Step.PASS),
        ([A], 1, Step.SETTLED),
        ([A, A], 3, Step.WAIT),
        ([A, A, A], 3, Step.SETTLED),
        ([A, B, A], 2, Step.WAIT),
        ([A, B, B], 2, Step.SETTLED),
        ([A, A, None], 3, Step.PASS),
        # An error says nothing about the difference: neither that it goes on nor that it has changed.
        ([A, "error", A], 2, Step.SETTLED),
        ([A, A, "error"], 2, Step.WAIT),
        (["error", "error", "error"], 1, Step.WAIT),
        (["error", None], 1, Step.PASS),
    ],
)
def test_a_difference_settles(looks: list[str | None], settle_pokes: int, last: Step) -> None:
    assert steps(looks, settle_pokes)[-1] is last


@pytest.mark.parametrize(
    ("look", "step"), [(None, Step.PASS), (A, Step.TIME_OVER), ("error", Step.TIME_OVER)]
)
def test_when_the_time_is_over_only_agreement_passes(look: str | None, step: Step) -> None:
    progress = Progress().failed("down") if look == "error" else Progress().saw(look)
    assert step_after(progress, compared=look != "error", settle_pokes=5, time_over=True) is step


def test_the_progress_counts_looks_and_errors() -> None:
    progress = Progress().saw(A).failed("down").saw(A).failed("gone")
    assert progress == Progress(4, 2, A, 2, "gone")
