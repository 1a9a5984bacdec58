"""Every statement of the ledger against the state machine, on every row that there can be."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard.core.states import PHASES_OF_STATE, TRANSITIONS, Event, FollowUp, State
from airflow_guard.store.by_keys import ByKeys
from airflow_guard.store.dialects import list_value
from tests.contract.attempts import opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_guard.core.keys import KeySpace
    from airflow_guard.store.ledger import Ledger

EVENTS = {
    "take": {Event.CLAIM, Event.TAKE_OVER},
    "begin": {Event.BEGIN},
    "enter_transaction": {Event.BEGIN},
    "complete": {Event.COMPLETE},
    "complete_in_transaction": {Event.COMPLETE},
    "complete_and_begin": {Event.COMPLETE, Event.BEGIN},
    "fail_before": {Event.FAIL},
    "fail_begun": {Event.FAIL},
    "reject": {Event.REJECT},
    "doubt": {Event.DOUBT},
    "doubt_expired": {Event.DOUBT},
    "late_complete": {Event.LATE_REPORT},
    "late_fail": {Event.LATE_REPORT},
    "late_reject": {Event.LATE_REPORT},
    "resolve_happened": {Event.RESOLVE_HAPPENED},
    "resolve_not_happened": {Event.RESOLVE_NOT_HAPPENED},
    "waive": {Event.WAIVE},
    "send_again": {Event.SEND_AGAIN},
    "drop": {Event.DROP},
    "reopen": {Event.RERUN},
}
FOLLOW_UPS = {
    "follow_up_done": {(FollowUp.PENDING, FollowUp.NONE)},
    "follow_up_failed": {(FollowUp.PENDING, FollowUp.FAILED)},
    "settle_follow_up": {(FollowUp.PENDING, FollowUp.SETTLED), (FollowUp.FAILED, FollowUp.SETTLED)},
}
NO_CHANGE = {"take_content", "renew_key", "late_result", "offer_content", "accept_content"}
ONLY_WITH_THE_LEASE_OVER = {"doubt_expired", "settle_follow_up"}
MOMENT = datetime(2025, 3, 31, 12, 0, 0)  # noqa: DTZ001 - the columns hold UTC without saying so
TOKEN, STRANGER = "a" * 32, "b" * 32


def every_row(space: KeySpace, alive: int, over: int) -> list[dict[str, Any]]:
    rows = []
    for state, phases in PHASES_OF_STATE.items():
        for phase in phases:
            for follow_up in FollowUp if state is State.COMPLETED else [FollowUp.NONE]:
                for task_run_id in (alive, over):
                    for begun_at in (None, MOMENT):
                        for token in (TOKEN, STRANGER):
                            number = len(rows)
                            rows.append({
                                "key_date": space.key_date, "key_hash": f"{number:032x}", "normaliser": 1,
                                "key_namespace": space.key_namespace, "operation": space.operation,
                                "business_date": space.business_date, "cycle": "", "document": f"S-{number}",
                                "deployment": "default", "state": state.value, "phase": phase.value,
                                "follow_up": follow_up.value, "attempt": 1, "generation": 1, "owner_token": token,
                                "idempotency_key": f"{number:032x}", "task_run_id": task_run_id, "begun_at": begun_at,
                                "claimed_at": MOMENT, "content_offered": "other",
                                "finished_at": None if state in (State.IN_PROGRESS, State.IN_DOUBT) else MOMENT,
                            })  # fmt: skip
    return rows


def changes_of(
    ledger: Ledger, name: str, space: KeySpace
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Run a statement on every possible row, and return before and after of those that it changed."""
    alive, over = opened(ledger, space), opened(ledger, space)
    ledger.runs.close(over, "failed", {})
    e, statement = ledger.database.tables.execution, getattr(ledger.statements, name)
    rows = every_row(space, alive, over)
    hashes = [row["key_hash"] for row in rows]
    outcomes = [None if number % 3 == 1 else "1" for number in range(len(rows))]
    values = {
        "d": space.key_date, "hashes": list_value(ledger.database.dialect, hashes),
        "outcomes": list_value(ledger.database.dialect, outcomes), "token": TOKEN, "why": "why",
        "outcome": "1", "pushed": None, "follow": "none", "run": alive,
        "batch": "c" * 32, "print_": "print", "receiver_key": "d" * 32,
    }  # fmt: skip
    many = statement.many if isinstance(statement, ByKeys) else statement.statement
    wanted = {key: values[key] for key in many.compile(ledger.database.engine).params if key in values}
    found = sa.select(e).where(e.c.key_date == space.key_date).order_by(e.c.key_hash)
    with ledger.database.engine.connect() as connection:
        connection.execute(sa.insert(e), rows)
        before = connection.execute(found).mappings().all()
        count = connection.execute(many, wanted).rowcount
        after = connection.execute(found).mappings().all()
        connection.rollback()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if dict(old) != dict(new)]
        assert count == len(changed)
        if isinstance(statement, ByKeys):
            connection.execute(sa.insert(e), rows)
            parameters = {key: value for key, value in wanted.items() if key not in ("d", "hashes")}
            keys = {old["key_hash"] for old, _ in changed}
            for key in [*sorted(keys)[:12], *[key for key in hashes if key not in keys][::9]]:
                assert statement.run(connection, space.key_date, [key], **parameters).rowcount == (
                    key in keys
                )
            connection.rollback()
    return changed


@pytest.mark.parametrize("name", [*EVENTS, *FOLLOW_UPS, *sorted(NO_CHANGE)])
def test_each_statement_makes_its_transition_and_no_other(
    shared_ledger: Ledger, space: KeySpace, name: str
) -> None:
    """Over every state, phase, follow-up, lease and owner there can be."""
    if getattr(shared_ledger.statements, name) is None:
        pytest.skip(f"{name} is a statement of another database")
    space = replace(space, business_date=date(2001, 1, 1))
    changed = changes_of(shared_ledger, name, space)
    assert changed
    made = {(State(old["state"]), State(new["state"])) for old, new in changed}
    if name in EVENTS:
        assert made <= {(one.source, one.target) for one in TRANSITIONS if one.event in EVENTS[name]}
    elif name in FOLLOW_UPS:
        assert made == {(State.COMPLETED, State.COMPLETED)}
        assert {(old["follow_up"], new["follow_up"]) for old, new in changed} == FOLLOW_UPS[name]
    else:
        assert all((old["state"], old["phase"]) == (new["state"], new["phase"]) for old, new in changed)
    last = max(old["task_run_id"] for old, _ in changed)  # the try whose lease is over
    for old, new in changed:
        over = old["task_run_id"] == last
        if name == "take":
            assert old["state"] == "failed" or (old["phase"] == "none" and over)
        else:
            assert old["owner_token"] == new["owner_token"] == TOKEN
        if name in ONLY_WITH_THE_LEASE_OVER:
            assert over or old["follow_up"] == "failed"
        again = int(name == "reopen")
        assert new["generation"] == old["generation"] + again
        assert (old["idempotency_key"] != new["idempotency_key"]) == (again or name == "renew_key")
        if again:
            assert old["follow_up"] in ("none", "settled")
        for column in ("key_namespace", "operation", "business_date", "document", "deployment"):
            assert old[column] == new[column]


def test_every_transition_is_made_by_some_statement(shared_ledger: Ledger, space: KeySpace) -> None:
    space = replace(space, business_date=date(2001, 1, 1))
    made = {(None, Event.CLAIM, State.IN_PROGRESS), (None, Event.ADOPT, State.COMPLETED)}
    made.add((None, Event.DROP, State.DROPPED))  # of what was listed and never claimed: drops.py
    for name, events in EVENTS.items():
        if getattr(shared_ledger.statements, name) is None:
            continue
        for old, new in changes_of(shared_ledger, name, space):
            event = events
            if name == "take":
                event = {Event.CLAIM if old["state"] == "failed" else Event.TAKE_OVER}
            elif name == "complete_and_begin":
                event = {Event.COMPLETE if new["state"] == "completed" else Event.BEGIN}
            made |= {(State(old["state"]), one, State(new["state"])) for one in event}
    assert made == {(one.source, one.event, one.target) for one in TRANSITIONS}
