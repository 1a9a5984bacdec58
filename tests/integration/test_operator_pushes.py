"""What the callable gives to other tasks beside its result: a replay gives it again (D07)."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import Database, External, IdempotentOperator
from airflow_guard.commands.main import main
from airflow_guard.decorators.idempotent import idempotent_task
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases
from tests.integration.holding import hold
from tests.integration.test_operator_waiting import is_waiting, released_when

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import DAG

    from tests.integration.conftest import Business
    from tests.processes import Worker

pytestmark = databases("sqlite", "postgres_embedded", "mariadb")

MARCH_31 = datetime(2025, 3, 31, tzinfo=UTC)
KEYS = ("file_name", "day", "pair", "A", "B", "C")
"""What the task behind pulls, whether it was pushed or not."""


def dag_of(business: Business, function: Callable[..., Any], seen: list[Any], **parameters: Any) -> DAG:
    """A DAG with one guarded task, and one behind it that pulls."""
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG

    def pull(ti: Any) -> None:
        seen.append({key: ti.xcom_pull(task_ids="act", key=key) for key in KEYS})

    defaults: dict[str, Any] = {
        "task_id": "act", "python_callable": function, "retries": 2, "retry_delay": timedelta(0),
    }  # fmt: skip
    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        behind = PythonOperator(task_id="pull", python_callable=pull)
        IdempotentOperator(**{**defaults, **parameters}) >> behind
    return dag


def again(run: AirflowRun) -> None:
    """Clear the run, and run it again: all is replayed."""
    run.clear().go()
    assert set(run.states().values()) == {"success"}


_ONE_AT_A_TIME = threading.Lock()
"""The supervisor of ``dag.test()`` answers one thread at a time; that of a real task has a lock of its own."""


def push(document: Any, ti: Any) -> str:
    with _ONE_AT_A_TIME:
        ti.xcom_push("file_name", f"{document}.csv")
        ti.xcom_push(key="day", value=date(2025, 3, 31))
        ti.xcom_push("pair", ("a", 1))
        ti.xcom_push(str(document), {"of": document})
    return "done"


@pytest.fixture(params=["database", "external", "window", "threads"])
def effect(request: pytest.FixtureRequest, business: Business) -> dict[str, Any]:
    """Parameters of a task that pushes, for each way to work."""
    if request.param == "database":

        def post(document: Any, ti: Any, connection: Any) -> str:
            business.post(connection, "act", str(document), None)
            return push(document, ti)

        return {"python_callable": post, "side_effect": "database"}
    if request.param == "window":

        def pay(document: Any, ti: Any, effect: Any) -> str:
            ti.xcom_push("file_name", "overwritten later")
            with effect:
                business.act("act", str(document))
            return push(document, ti)

        return {"python_callable": pay}

    def send(document: Any, ti: Any) -> str:
        business.act("act", str(document))
        return push(document, ti)

    return {"python_callable": send, "max_workers": 3 if request.param == "threads" else 1}


@pytest.mark.parametrize(
    "documents", [{"document": "A"}, {"documents": ["C", "A", "B"]}], ids=["one", "several"]
)
def test_d07_a_replay_pushes_what_the_first_run_pushed(
    business: Business, effect: dict[str, Any], documents: dict[str, Any]
) -> None:
    seen: list[Any] = []
    run = start_run(dag_of(business, push, seen, **effect, **documents), logical_at=MARCH_31).go()
    again(run)
    again(run)
    first, *replays = seen
    assert replays == [first, first]
    last = "A" if "document" in documents else "B"
    assert (first["file_name"], first["day"], first["pair"]) == (f"{last}.csv", date(2025, 3, 31), ("a", 1))
    assert first[last] == {"of": last}
    assert len(business.documents()) == len(set(business.documents())), "nothing was executed twice"


def test_d07_the_order_of_the_listing_decides_also_where_a_retry_replays_a_part(business: Business) -> None:
    """B is executed by the first try, A by the second: other tasks pull what one undisturbed run gives, of B."""
    seen: list[Any] = []
    broken = [True]

    def send(document: str, ti: Any, effect: Any) -> str:
        if document == "A" and broken and broken.pop():
            raise ValueError("not prepared")
        with effect:
            business.act("act", document)
        return push(document, ti)

    run = start_run(dag_of(business, send, seen, documents=["A", "B"]), logical_at=MARCH_31).go()
    assert run.states()["act"] == "up_for_retry"
    run.go()
    again(run)
    assert seen[1] == seen[0]
    assert (seen[0]["file_name"], seen[0]["A"], seen[0]["B"]) == ("B.csv", {"of": "A"}, {"of": "B"})


def test_d07_a_listing_in_another_order_gives_what_the_first_run_gave(business: Business) -> None:
    seen: list[Any] = []
    listings = [["A", "B"], ["B", "A"]]

    def send(document: str, ti: Any) -> str:
        business.act("act", document)
        return push(document, ti)

    run = start_run(dag_of(business, send, seen, documents=lambda: listings.pop(0)), logical_at=MARCH_31).go()
    again(run)
    assert [pulled["file_name"] for pulled in seen] == ["B.csv", "B.csv"]


@pytest.mark.parametrize("inside", [True, False], ids=["database", "external"])
def test_d07_a_batch_pushes_again(business: Business, inside: bool) -> None:
    seen: list[Any] = []

    def post(documents: list[str], ti: Any, connection: Any) -> None:
        business.post(connection, "act", "+".join(documents), None)
        push("".join(documents), ti)

    def send(documents: list[str], ti: Any) -> None:
        business.act("act", "+".join(documents))
        push("".join(documents), ti)

    given: dict[str, Any] = {"call_per": "batch", "batch_size": 2, "documents": ["A", "B", "C"]}
    function = post if inside else send
    given |= {"side_effect": "database"} if inside else {}
    run = start_run(dag_of(business, function, seen, **given), logical_at=MARCH_31).go()
    again(run)
    assert seen[1] == seen[0]
    assert (seen[0]["file_name"], seen[0]["C"]) == ("C.csv", {"of": "C"})
    assert sorted(str(each) for each in business.documents()) == ["A+B", "C"]


def test_d07_it_is_noted_by_whatever_way_it_is_pushed(business: Business) -> None:
    from airflow.sdk import get_current_context

    seen: list[Any] = []

    async def send(document: str, **context: Any) -> str:
        business.act("act", document)
        context["task_instance"].xcom_push("file_name", "a.csv")
        get_current_context()["ti"].xcom_push("A", 1)
        thread = threading.Thread(target=lambda: context["ti"].xcom_push("B", 2))
        thread.start()
        thread.join()
        return "done"

    run = start_run(dag_of(business, send, seen, document="A"), logical_at=MARCH_31).go()
    again(run)
    assert seen[1] == seen[0]
    assert [seen[0][key] for key in ("file_name", "A", "B")] == ["a.csv", 1, 2]


def test_d07_what_is_not_pushed_is_not_stored(business: Business) -> None:
    run = start_run(
        dag_of(business, lambda document: business.act("act", document), [], documents=["A", "B"]),
        logical_at=MARCH_31,
    ).go()
    assert set(run.states().values()) == {"success"}
    assert [row.pushed for row in business.ledger_rows()] == [None, None]


def test_d07_what_cannot_be_stored_is_said_in_the_first_run_and_in_the_replay(
    business: Business, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def send(document: str, ti: Any) -> str:
        business.act("act", document)
        ti.xcom_push("file_name", "x" * 40_000)
        ti.xcom_push("A", 1)
        return "done"

    run = start_run(dag_of(business, send, seen, document="A"), logical_at=MARCH_31).go()
    for _ in range(2):
        assert "the XCom 'file_name' is not stored" in caplog.text
        assert "more than" in caplog.text
        caplog.clear()
        again(run)
    assert [pulled["A"] for pulled in seen] == [1, 1, 1]
    assert business.documents() == ["A"]


def test_d07_several_outputs_of_a_decorated_function(business: Business) -> None:
    from airflow.sdk import DAG, task

    seen: list[Any] = []
    with DAG(business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:

        @idempotent_task(multiple_outputs=True)
        def act(document: str) -> dict[str, Any]:
            business.act("act", document)
            return {"file_name": "a.csv", "A": 1}

        @task
        def pull(file_name: str, number: int) -> None:
            seen.append((file_name, number))

        outputs = act(document="A")
        pull(outputs["file_name"], outputs["A"])
    run = start_run(dag, logical_at=MARCH_31).go()
    again(run)
    assert seen == [("a.csv", 1)] * 2
    assert business.documents() == ["A"]


# -- where the first run had more than one call, or more than one process ------------------------------------


def person(business: Business, *words: str) -> None:
    assert main([*words, "--reason", "ticket 77", "--yes", "--ledger", business.database.url]) == 0


@pytest.mark.parametrize("call_per", ["document", "batch"])
def test_d07_what_was_pushed_before_a_follow_up_failed_is_pushed_again(
    business: Business, call_per: str
) -> None:
    from airflow.sdk import Asset

    seen: list[Any] = []
    book = Asset(f"book_{business.dag_id}")

    def send(ti: Any, effect: Any, outlet_events: Any, **_: Any) -> str:
        with effect:
            business.act("act", "A")
            ti.xcom_push("file_name", "a.csv")
        outlet_events[book].extra["rows"] = 1
        raise ValueError("the archive is full")

    given = {"documents": ["A"], "call_per": call_per, "outlets": [book], "retries": 0}
    run = start_run(dag_of(business, send, seen, **given), logical_at=MARCH_31).go()
    assert run.states()["act"] == "failed"
    [row] = business.ledger_rows()
    person(business, "resolve", "--key", row.key_hash, "--followed-up")
    again(run)
    assert [pulled["file_name"] for pulled in seen] == ["a.csv"]
    assert [extra["rows"] for extra in emitted(business)] == [1]
    assert business.documents() == ["A"]


@pytest.mark.parametrize("inside", [True, False], ids=["database", "external"])
def test_d07_what_the_reversal_of_the_first_effect_pushed_is_pushed_again(
    business: Business, inside: bool
) -> None:
    from airflow.sdk import Asset

    seen: list[Any] = []
    book = Asset(f"book_{business.dag_id}")

    def reverse(document: str, ti: Any, outlet_events: Any) -> None:
        ti.xcom_push("pair", "reversed")
        ti.xcom_push("file_name", "overwritten by the second effect")
        outlet_events[book].extra["reversed"] = document

    def send(document: str, ti: Any, outlet_events: Any) -> str:
        business.act("act", document)
        ti.xcom_push("file_name", f"{len(business.documents())}.csv")
        outlet_events[book].extra["sent"] = document
        return "done"

    def post(document: str, ti: Any, outlet_events: Any, connection: Any) -> str:
        business.post(connection, "act", document, None)
        ti.xcom_push("file_name", "2.csv" if seen else "1.csv")
        outlet_events[book].extra["sent"] = document
        return "done"

    effect = Database(on_rerun=reverse) if inside else External(on_rerun=reverse)
    dag = dag_of(
        business, post if inside else send, seen, documents=["A"], side_effect=effect, outlets=[book]
    )
    run = start_run(dag, logical_at=MARCH_31).go()
    person(business, "rerun", business.dag_id, "act", "--start", "2025-03-31")
    again(run)
    again(run)
    assert business.documents() == ["A", "A"]
    _, second, replay = seen
    assert second == replay
    assert (second["pair"], second["file_name"]) == ("reversed", "2.csv")
    _, second, replay = emitted(business)
    assert second == replay == {"business_date": "2025-03-31", "reversed": "A", "sent": "A"}


@pytest.mark.usefixtures("short_deferrals")
@pytest.mark.parametrize("deferrable", [False, True], ids=["in process", "deferred"])
def test_d07_what_was_pushed_before_the_task_left_its_worker_is_there_after_it(
    business: Business, start_worker: Callable[..., Worker], deferrable: bool
) -> None:
    from airflow.sdk import Asset

    holder = start_worker(hold, url=business.database.url, dag_id=business.dag_id, documents=["A"])
    holder.wait_for("at work")
    seen: list[Any] = []
    book = Asset(f"book_{business.dag_id}")

    def send(document: str, ti: Any, outlet_events: Any) -> str:
        business.act("act", document)
        outlet_events[book].extra[document] = 1
        return push(document, ti)

    given = {"documents": ["A", "B"], "outlets": [book], "deferrable": deferrable, "poll_interval": 0.05}
    released = released_when(holder, is_waiting(business))
    run = start_run(dag_of(business, send, seen, **given), logical_at=MARCH_31).go()
    released.join()
    assert run.states()["act"] == "success"
    again(run)
    assert business.documents() == ["B"]
    assert [(pulled["file_name"], pulled["B"]) for pulled in seen] == [("B.csv", {"of": "B"})] * 2
    first, replay = emitted(business)
    assert first == replay == {"business_date": "2025-03-31", "B": 1}


# -- outlet events -------------------------------------------------------------------------------------------


def emitted(business: Business) -> list[dict[str, Any]]:
    """Return the extras of the asset events of this DAG, oldest first."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        mine = select(AssetEvent).where(AssetEvent.source_dag_id == business.dag_id).order_by(AssetEvent.id)
        return [dict(event.extra) for event in session.scalars(mine)]


@pytest.mark.parametrize("way", ["assigned", "yielded", "context"])
@pytest.mark.parametrize("workers", [1, 3])
def test_d07_extras_of_outlet_events_are_given_again(business: Business, way: str, workers: int) -> None:
    from airflow.sdk import Asset, Metadata

    book = Asset(f"book_{business.dag_id}")

    def assigned(document: str, outlet_events: Any) -> str:
        business.act("act", document)
        outlet_events[book].extra[document] = {"rows": 1}
        outlet_events[book].extra["last"] = document
        return "done"

    def yielded(document: str) -> Any:
        business.act("act", document)
        yield Metadata(book, {document: {"rows": 1}, "last": document})
        return "done"

    def of_context(document: str, **context: Any) -> str:
        return assigned(document, context["outlet_events"])

    function = {"assigned": assigned, "yielded": yielded, "context": of_context}[way]
    dag = dag_of(business, function, [], documents=["A", "B", "C"], outlets=[book], max_workers=workers)
    run = start_run(dag, logical_at=MARCH_31).go()
    again(run)
    first, replayed = emitted(business)
    assert replayed == first
    assert (first["A"], first["B"], first["C"], first["last"]) == ({"rows": 1}, {"rows": 1}, {"rows": 1}, "C")
    assert sorted(str(each) for each in business.documents()) == ["A", "B", "C"]


def test_d07_events_of_an_alias_are_emitted_again_once(business: Business) -> None:
    from airflow.sdk import Asset, AssetAlias

    alias, book = AssetAlias(f"books_{business.dag_id}"), Asset(f"new_{business.dag_id}")

    def send(document: str, outlet_events: Any) -> str:
        business.act("act", document)
        outlet_events[alias].add(book, extra={"of": document})
        return "done"

    run = start_run(
        dag_of(business, send, [], documents=["A", "B"], outlets=[alias]), logical_at=MARCH_31
    ).go()
    first = emitted(business)
    again(run)
    assert emitted(business)[len(first) :] == first
    assert [extra["of"] for extra in first] in (["A", "B"], ["B"])
