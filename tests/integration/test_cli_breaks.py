"""``airflow-guard breaks``: what reconciliations have found, and a person who accepts or settles it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.commands.main import main
from tests.databases import databases
from tests.integration.sides import JANUARY_30, Sides

if TYPE_CHECKING:
    from tests.integration.conftest import Business

pytestmark = databases("postgres_embedded")

Run = Callable[..., str] if TYPE_CHECKING else Any
WHY = ("--reason", "fee booked by hand", "--actor", "jane", "--yes")


@pytest.fixture
def sides(business: Business) -> Sides:
    """Two breaks of 30 January, one of them also of 31 January."""
    sides = Sides(business)
    sides.add("booked", ("D-1", "10.00"), ("D-2", "2.00"))
    sides.add("posted", ("D-1", "12.50"))
    sides.run(settle_pokes=1)
    sides.add("booked", ("E-1", "1.00"), day=JANUARY_30.date() + timedelta(days=1))
    sides.run(at=JANUARY_30 + timedelta(days=1), settle_pokes=1, recheck_days=0)
    return sides


@pytest.fixture
def cli(sides: Sides, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(["breaks", *arguments, "--ledger", sides.business.database.url])
        captured = capsys.readouterr()
        assert ended == code, captured
        return captured.out if code == 0 else captured.err

    return run


def listed(cli: Run, *arguments: str) -> list[tuple[str, str, str]]:
    found = json.loads(cli(*arguments, "-o", "json"))
    return [(each["business_date"], each["document"], each["state"]) for each in found]


def ids(cli: Run) -> dict[str, str]:
    return {each["document"]: str(each["id"]) for each in json.loads(cli("-o", "json"))}


A, B, C = ("2026-01-30", "D-1", "open"), ("2026-01-30", "D-2", "open"), ("2026-01-31", "E-1", "open")


def test_every_filter_narrows(sides: Sides, cli: Run) -> None:
    dag = sides.business.dag_id
    assert sorted(listed(cli)) == [A, B, C]
    assert sorted(listed(cli, dag)) == [A, B, C]
    assert listed(cli, "another") == []
    assert sorted(listed(cli, dag, "2026-01-30")) == [A, B]
    assert listed(cli, "--type", "amount_mismatch") == [A]
    assert listed(cli, "--id", ids(cli)["D-2"]) == [B]
    assert listed(cli, "--operation", "other") == []
    assert listed(cli, "--state", "explained") == []
    assert len(listed(cli, "--limit", "1")) == 1


def test_the_table_has_what_a_person_needs(cli: Run) -> None:
    text = cli()
    for word in ("amount_mismatch", "D-1", "10", "12.5", "2.5", "missing_in_target", "E-1", "open"):
        assert word in text
    (one,) = [each for each in json.loads(cli("-o", "json")) if each["document"] == "D-1"]
    assert [float(one[name]) for name in ("source_value", "target_value", "variance")] == [10, 12.5, 2.5]
    assert one["opened_in"]


def test_several_are_accepted_by_their_ids(sides: Sides, cli: Run) -> None:
    numbers = ids(cli)
    chosen = ("--id", numbers["D-1"], "--id", numbers["D-2"])
    assert "would become explained" in cli(*chosen, "--explain", "--dry-run", *WHY)
    assert {row.state for row in sides.breaks()} == {"open"}
    assert "explained by jane: fee booked by hand" in cli(*chosen, "--explain", *WHY)
    assert [(row.document, row.state, row.actor) for row in sides.breaks() if row.state != "open"] == [
        ("D-1", "explained", "jane"),
        ("D-2", "explained", "jane"),
    ]
    events = [event for event in sides.business.events() if event.kind == "break_explained"]
    assert [(event.actor, event.reason) for event in events] == [("jane", "fee booked by hand")] * 2
    assert "is explained already by jane" in cli(*chosen, "--explain", *WHY, code=1)
    # An explained break fails nothing any more.
    again = sides.run(settle_pokes=1, recheck_days=0)
    assert again.states() == {"reconcile": "success"}


def test_all_of_a_date_are_settled(sides: Sides, cli: Run) -> None:
    dag = sides.business.dag_id
    cli(dag, "2026-01-30", "--operation", "reconcile", "--all", "--resolve", *WHY)
    assert sorted((row.document, row.state) for row in sides.breaks()) == [
        ("D-1", "resolved"), ("D-2", "resolved"), ("E-1", "open"),
    ]  # fmt: skip
    assert len(listed(cli, "--state", "resolved")) == 2
    assert "no such break that is explained or open" in cli(
        dag, "2026-01-30", "--all", "--resolve", *WHY, code=1
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--explain", "--id", "1", "--yes"), 1, "A reason is missing"),
        (("--explain", "--id", "999", *WHY), 1, "There is no break 999"),
        (("--explain", "--resolve", "--id", "1", *WHY), 2, "one of --explain, --resolve"),
        (("--explain", *WHY), 2, "--id N, or --all"),
        (("--explain", "--all", *WHY), 2, "--all needs a DAG"),
        (("--reason", "x"), 2, "belong to"),
        (("--limit", "0"), 2, "at least 1"),
        (("--explain", "--id", "1", "--reason", "x"), 1, "This is no terminal"),
    ],
)
def test_what_is_not_clear_is_refused(
    sides: Sides, cli: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    assert says in cli(*arguments, code=code)
    assert {row.state for row in sides.breaks()} == {"open"}
