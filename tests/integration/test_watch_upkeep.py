"""What the ledger wants of its operator is told by the watch: to every team, once, and when it is done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG

from airflow_guard import GuardWatchOperator
from airflow_guard.acts import lost_commits
from airflow_guard.store.dialects import utc_after
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import partition
from tests.airflow_runs import start_run
from tests.alerting import ChatNotifier, Webhook
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Business

LOST_SINCE = datetime(2026, 1, 30, 2, 10, tzinfo=UTC)


@pytest.fixture
def chat() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.close()


def look(business: Business, chat: Webhook, **options: Any) -> list[str]:
    """Let a watch look once, and return what was sent."""
    before = len(chat.posted)
    with DAG(f"watch_{business.dag_id}", schedule=None) as dag:
        GuardWatchOperator(task_id="watch", **{"transports": [ChatNotifier(chat.url)], **options})
    start_run(dag, logical_at=datetime.now(UTC)).go()
    return chat.posted[before:]


@databases("sqlite", "postgres_embedded", "mariadb")
def test_a_fail_over_that_is_not_closed_is_told_after_a_day_and_when_it_is_closed(
    business: Business, chat: Webhook
) -> None:
    ledger = Ledger(business.ledger)
    lost_commits.record(ledger, LOST_SINCE, actor="erika", reason="db2 took over")
    assert look(business, chat) == [], "somebody has just recorded it, and is at work"
    recorded = business.ledger.tables.fail_over
    with business.ledger.engine.begin() as connection:
        connection.execute(sa.update(recorded).values(recorded_at=utc_after(sa.literal(-25 * 3600.0))))

    (text,) = look(business, chat)
    assert text.startswith(
        "FAIL-OVER NOT CLOSED: the ledger\nA fail-over that lost commits since 2026-01-30 02:10:00 UTC"
    )
    assert "recorded by erika" in text
    assert 'airflow-guard failover --close --reason "…"' in text
    assert "unknown" not in text
    assert look(business, chat) == []
    lost_commits.close(ledger, actor="erika", reason="compared")
    (over,) = look(business, chat)
    assert over.startswith("RESOLVED (was: FAIL-OVER NOT CLOSED): the ledger")


@databases("postgres_embedded")
def test_a_month_without_a_partition_is_told_to_every_team_before_it_comes(
    business: Business, chat: Webhook
) -> None:
    partition(business.ledger, ahead=0)
    others = Webhook()
    teams = {
        "teams": {"payments": ["pay_*"], "books": ["book_*"], "letters": ["letter_*"]},
        "transports": {"payments": [ChatNotifier(chat.url)], "*": [ChatNotifier(others.url)]},
    }
    next_month = (datetime.now(UTC).replace(day=1) + timedelta(days=32)).strftime("%Y-%m")
    try:
        (text,) = look(business, chat, **teams)
        assert text.startswith("NO PARTITION AHEAD: the ledger\n")
        assert f"no partition for {next_month}" in text
        assert "airflow-guard migrate --partitions-ahead 3" in text
        assert "unknown" not in text
        assert len(others.posted) == 1, "two teams behind one address are told once"
        assert look(business, chat, **teams) == []
        partition(business.ledger, ahead=3)
        (over,) = look(business, chat, **teams)
        assert over.startswith("RESOLVED (was: NO PARTITION AHEAD): the ledger")
        assert others.posted[1:] == [over]
    finally:
        others.close()
