"""``@task.idempotent``: the function's own arguments, the operator's documents, and what the operator
gives."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import External
from airflow_guard.decorators.idempotent import idempotent_task
from tests.airflow_runs import start_run
from tests.databases import databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import DAG

    from tests.integration.conftest import Business

pytestmark = databases("sqlite")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)


@pytest.fixture
def dag(business: Business) -> Iterator[DAG]:
    """The DAG that the test fills."""
    from airflow.sdk import DAG

    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        yield dag


def test_airflow_finds_it_as_task_idempotent(business: Business, dag: DAG) -> None:
    from airflow.sdk import task

    effect = External(verify=lambda document: None, settle_after=timedelta(minutes=5))

    @task.idempotent(operation="notify", document_key="no", max_workers=2, side_effect=effect)
    def notify(payload: dict[str, Any], idempotency_key: str) -> str:
        """Tell the customer."""
        business.act("notify", payload["no"])
        return idempotency_key

    notify(documents=lambda: [{"no": "A"}, {"no": "B"}])
    run = start_run(dag, logical_at=MARCH_31).go()
    assert run.states() == {"notify": "success"}
    assert run.result("notify")["executed"] == 2
    assert sorted(map(str, business.documents())) == ["A", "B"]
    assert dag.task_dict["notify"].doc_md == "Tell the customer."


def test_arguments_positional_and_named_and_from_other_tasks(business: Business, dag: DAG) -> None:
    from airflow.sdk import task

    @task
    def region() -> str:
        return "eu"

    @task
    def due() -> list[str]:
        return ["A", "B"]

    @idempotent_task
    def notify(
        payload: str, region: str, ds: str, business_date: date, channel: str = "post", **rest: Any
    ) -> None:
        business.act(f"{region} {channel} {ds} {rest['run_id'][:6]} {rest['colour']}", payload, business_date)

    notify(region(), documents=due(), channel="mail", colour="red")
    run = start_run(dag, run_type="manual", logical_at=MARCH_31).go()
    assert set(run.states().values()) == {"success"}
    assert business.rows() == [("eu mail 2025-03-31 manual red", name, "2025-03-31") for name in ("A", "B")]
    assert dag.task_dict["notify"].upstream_task_ids == {"region", "due"}


def test_one_document_gives_the_functions_result(business: Business, dag: DAG) -> None:
    from airflow.sdk import task

    @idempotent_task(multiple_outputs=True)
    def post(document: str, connection: Any) -> dict[str, str]:
        business.post(connection, "post", document, None)
        return {"posted": document}

    @task
    def after(receipt: dict[str, str], posted: str) -> str:
        return f"{receipt} {posted}"

    receipt = post.override(side_effect="database")(document="{{ ds }}")
    after(receipt, receipt["posted"])
    run = start_run(dag, logical_at=MARCH_31).go()
    run.clear().go()
    assert run.result("after") == "{'posted': '2025-03-31'} 2025-03-31"
    assert business.documents() == ["2025-03-31"]


def test_the_run_as_a_whole(business: Business, dag: DAG) -> None:
    @idempotent_task
    def close(business_date: date) -> str:
        business.act("close", None, business_date)
        return "closed"

    close()
    run = start_run(dag, logical_at=MARCH_31).go()
    run.clear().go()
    assert run.result("close") == "closed"
    assert business.rows() == [("close", None, "2025-03-31")]


def test_mapped_over_its_document(business: Business, dag: DAG) -> None:
    from airflow.sdk import task

    @task
    def due() -> list[str]:
        return ["A", "B"]

    @idempotent_task
    def notify(document: str, region: str) -> str:
        business.act(region, document)
        return document

    notify.partial(region="eu").expand(document=due())
    notify.override(task_id="literal").partial(region="us").expand(document=["C", "D"])
    run = start_run(dag, logical_at=MARCH_31).go()
    run.clear().go()
    assert [run.result("notify", index) for index in (0, 1)] == ["A", "B"]
    assert (business.documents("eu"), business.documents("us")) == (["A", "B"], ["C", "D"])


def test_mapped_over_the_arguments_of_its_documents(business: Business, dag: DAG) -> None:
    from airflow.sdk import task

    @task
    def chunks() -> list[dict[str, int]]:
        return [{"lo": 0, "hi": 2}, {"lo": 2, "hi": 3}]

    def between(lo: int, hi: int) -> Any:
        yield from map(str, range(lo, hi))

    @idempotent_task
    def settle(document: str, lo: int, hi: int) -> None:
        business.act(f"{lo}-{hi}", document)

    settle.partial(documents=between).expand_kwargs(chunks())
    run = start_run(dag, logical_at=MARCH_31).go()
    assert [run.result("settle", index)["executed"] for index in (0, 1)] == [2, 1]
    assert (business.documents("0-2"), business.documents("2-3")) == (["0", "1"], ["2"])


def test_in_groups_and_mapped_groups(business: Business, dag: DAG) -> None:
    from airflow.sdk import task_group

    @idempotent_task
    def notify(document: str) -> None:
        business.act("notify", document)

    @task_group
    def plain() -> None:
        notify.override(operation="plain")(document="A")

    @task_group
    def mapped(name: str) -> None:
        notify.override(operation="mapped")(document=name)

    plain()
    mapped.expand(name=["B", "C"])
    run = start_run(dag, logical_at=MARCH_31).go()
    assert set(run.states().values()) == {"success"}
    assert sorted(map(str, business.documents())) == ["A", "B", "C"]


def test_coroutines(business: Business, dag: DAG) -> None:
    @idempotent_task
    async def notify(document: str) -> str:
        business.act("notify", document)
        return document

    notify(document="A")
    run = start_run(dag, logical_at=MARCH_31).go()
    assert run.result("notify") == "A"
    assert business.documents() == ["A"]


def test_the_function_itself_can_be_called_in_a_test_of_its_author() -> None:
    @idempotent_task
    def double(payload: int) -> int:
        return payload * 2

    assert double.function(payload=2) == 4
