"""What is refused when the DAG is parsed, before anything runs."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard import (
    ConfigurationError,
    External,
    IdempotentOperator,
    LedgerNotConfigured,
    from_asset_extra,
    month_end,
)
from airflow_guard.decorators.idempotent import idempotent_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import DAG

SETTING = "AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID"


@pytest.fixture(autouse=True)
def _ledger_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "ledger")


@pytest.fixture
def dag() -> Iterator[DAG]:
    """The DAG that is being parsed."""
    from airflow.sdk import DAG

    with DAG("parsed", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        yield dag


def post(payload: Any, connection: Any) -> None:
    """A function for a database effect."""


def send(document: str, effect: Any) -> None:
    """A function for an external effect."""


def close_books() -> None:
    """A function that takes nothing."""


def guarded(**parameters: Any) -> IdempotentOperator:
    """Return a task that works, but for what a test changes."""
    defaults: dict[str, Any] = {"task_id": "send", "python_callable": send, "documents": ["A"]}
    return IdempotentOperator(**{**defaults, **parameters})


# -- the ledger ----------------------------------------------------------------------------------------------


def test_without_a_ledger_the_setting_is_named(monkeypatch: pytest.MonkeyPatch, dag: DAG) -> None:
    monkeypatch.delenv(SETTING)
    with pytest.raises(
        LedgerNotConfigured, match=r"(?s)ledger_conn_id.*AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID"
    ):
        guarded()
    guarded(task_id="other", ledger_conn_id="core_banking")


def test_a_ledger_in_default_args_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import DAG

    monkeypatch.delenv(SETTING)
    with DAG("parsed", schedule=None, default_args={"ledger_conn_id": "core_banking", "mode": "observe"}):
        task = guarded()
        mapped = IdempotentOperator.partial(task_id="m", python_callable=send).expand(document=["A"])
    assert task.ledger_conn_id == "core_banking"
    assert task.guard_spec.mode == "observe"
    assert mapped.unmap({"document": "A"}).ledger_conn_id == "core_banking"


# -- values and combinations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"on_duplicate": "ignore"}, "'replay' or 'skip' or 'fail'.*default_args"),
        ({"mode": "reschedule"}, "'enforce' or 'observe'.*default_args"),
        ({"once_per": "month"}, "'date' or 'document'"),
        ({"call_per": "page"}, "'document' or 'batch'"),
        ({"on_concurrent": "skip"}, "'wait' or 'fail'"),
        ({"on_other_run": "skip"}, "'fail' or 'replay'"),
        ({"max_workers": 0}, "at least 1"),
        ({"max_rejected": -1}, "at least 0"),
        ({"batch_size": "500"}, "whole number"),
        ({"lease": timedelta(seconds=1)}, "at least 3 seconds"),
        ({"wait_timeout": 0}, "above zero"),
        ({"poll_interval": "often"}, "above zero"),
        ({"guarded_from": "1.1.2026"}, "guarded_from.*YYYY-MM-DD"),
        ({"fingerprint_fields": "amount"}, "a list of names"),
        ({"retired_operations": "old"}, "a list of names"),
        ({"side_effect": "files"}, "External"),
        ({"side_effect": External}, "External"),
        ({"operation": "{{ ds }}"}, "neither templated nor mapped"),
        ({"operation": " send"}, "white space"),
        ({"operation": "x" * 251}, "250"),
        ({"key_namespace": 7}, "fixed text"),
        ({"document": "A"}, "both given"),
        ({"documents": "A"}, "document=…"),
        ({"documents": {"id": 1}}, "give a list"),
        ({"documents": (each for each in "AB")}, "generator"),
        ({"documents": None, "python_callable": close_books, "call_per": "batch"}, "needs documents"),
        (
            {"documents": None, "python_callable": close_books, "once_per": "document"},
            "means nothing without document",
        ),
        (
            {"documents": None, "python_callable": close_books, "document_key": "id"},
            "means nothing without document",
        ),
        ({"documents": None}, "takes document, but neither"),
        ({"once_per": "document", "cycle": "1"}, "leave out cycle"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused(dag: DAG, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){says}"):
        guarded(**parameters)


def test_a_parameter_of_on_rerun_that_nothing_fills_is_refused(dag: DAG) -> None:
    def reverse(previous_result: Any, nobody_gives_it: Any) -> None:
        del previous_result, nobody_gives_it

    with pytest.raises(ConfigurationError, match="on_rerun requires nobody_gives_it"):
        guarded(side_effect=External(on_rerun=reverse))


@pytest.mark.parametrize(
    "listed",
    [
        {"documents": [{"no": "A"}]},
        {"documents": ("A", {"no": "B"})},
        {"documents": None, "document": {"no": "A"}},
    ],
)
def test_mappings_in_the_file_need_a_document_key(dag: DAG, listed: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"mapping.*fields: no\)\. Set document_key=…$"):
        guarded(**listed)
    guarded(**listed, document_key="no", task_id="other")


# -- the functions -------------------------------------------------------------------------------------------


def _takes(source: str) -> Any:
    names: dict[str, Any] = {}
    exec(source, names)  # the signature is what the test is about
    return names["f"]


@pytest.mark.parametrize(
    ("function", "parameters", "says"),
    [
        ("def f(document): ...", {"side_effect": "database"}, "connection"),
        ("async def f(document, connection): ...", {"side_effect": "database"}, "ordinary function"),
        ("def f(document, connection): ...", {}, "connection"),
        ("def f(document, connection, effect): ...", {"side_effect": "database"}, "effect"),
        ("def f(document): ...", {"call_per": "batch"}, '"documents", not "document"'),
        ("def f(documents): ...", {}, 'call_per="batch"'),
        ("def f(document, amount): ...", {}, "requires amount, which nothing gives"),
        ("def f(document, amount): ...", {"op_kwargs": {"region": 1}}, "requires amount"),
        ("def f(document, payload): ...", {"op_kwargs": {"payload": 1}}, "op_kwargs hold payload"),
        ("def f(document, region): ...", {"op_args": ["eu"]}, "op_args fill document"),
        ("def f(document, /): ...", {}, "only be given by position"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith(("def", "async")) else "",
)
def test_signatures_are_checked(dag: DAG, function: str, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        guarded(python_callable=_takes(function), **parameters)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("def f(document, ds, ti, params): ...", {}),
        ("def f(region, document): ...", {"op_args": ["eu"]}),
        ("def f(document, region): ...", {"op_kwargs": {"region": "eu"}}),
        ("def f(document, region='eu'): ...", {}),
        ("def f(**values): ...", {"side_effect": "database"}),
        ("async def f(document): ...", {}),
        ("def f(documents, batch_id): ...", {"call_per": "batch"}),
        ("def f(document, templates_dict): ...", {"templates_dict": {"a": "{{ ds }}"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_signatures_that_work(dag: DAG, function: str, parameters: dict[str, Any]) -> None:
    guarded(python_callable=_takes(function), **parameters)


def test_verify_and_documents_are_checked_too(dag: DAG) -> None:
    verify = _takes("def f(document, receipt): ...")
    with pytest.raises(ConfigurationError, match=r"External\(verify=…\) requires receipt"):
        guarded(side_effect=External(verify=verify, settle_after=timedelta(minutes=1)))
    with pytest.raises(ConfigurationError, match="documents requires lo"):
        guarded(task_id="other", documents=_takes("def f(lo): ..."))
    guarded(task_id="third", documents=_takes("def f(lo, business_date, ds): ..."), op_kwargs={"lo": 1})


# -- one key, one task ---------------------------------------------------------------------------------------


def test_a_task_id_that_airflow_made_needs_an_operation(dag: DAG) -> None:
    from airflow.sdk import TaskGroup

    with pytest.raises(ConfigurationError, match="needs operation"):
        guarded(task_id="send__1")
    with TaskGroup("group"):
        with pytest.raises(ConfigurationError, match=r"'group\.send' needs operation"):
            guarded()
        with pytest.raises(ConfigurationError, match=r"'group\.mapped' needs operation"):
            IdempotentOperator.partial(task_id="mapped", python_callable=send).expand(document=["A"])
        guarded(task_id="named", operation="send")
    with TaskGroup("bare", prefix_group_id=False):
        guarded(task_id="plain")


def test_two_tasks_with_one_key_are_refused(dag: DAG) -> None:
    guarded(task_id="one", operation="send")
    with pytest.raises(ConfigurationError, match=r"'one' and 'two' have one key"):
        guarded(task_id="two", operation="send")
    guarded(task_id="evening", operation="send", cycle="evening")
    guarded(task_id="other", operation="send", key_namespace="another")


def test_two_tasks_with_one_key_are_refused_where_one_is_mapped(dag: DAG) -> None:
    IdempotentOperator.partial(task_id="one", operation="send", python_callable=send).expand(document=["A"])
    with pytest.raises(ConfigurationError, match=r"'one' and 'two' have one key"):
        guarded(task_id="two", operation="send")


def test_two_tasks_with_one_key_are_refused_where_both_are_mapped(dag: DAG) -> None:
    IdempotentOperator.partial(task_id="one", operation="send", python_callable=send).expand(document=["A"])
    with pytest.raises(ConfigurationError, match=r"'one' and 'two' have one key"):
        IdempotentOperator.partial(task_id="two", operation="send", python_callable=send).expand(
            document=["B"]
        )


def test_a_task_that_gets_its_dag_later_is_checked_then() -> None:
    from airflow.sdk import DAG

    late = guarded(task_id="two", operation="send")
    with DAG("parsed", schedule=None) as dag:
        guarded(task_id="one", operation="send")
    with pytest.raises(ConfigurationError, match="have one key"):
        dag.add_task(late)


def test_a_guarded_task_is_no_setup(dag: DAG) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator

    with pytest.raises(ConfigurationError, match="cannot be a setup"):
        guarded(task_id="one").as_setup()
    with pytest.raises(ConfigurationError, match="cannot be a setup"):
        EmptyOperator(task_id="end").as_teardown(setups=guarded(task_id="two"))


def test_d07_a_guarded_task_is_no_teardown(dag: DAG) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import teardown

    refused = pytest.raises(ConfigurationError, match="cannot be a teardown")
    with refused:
        guarded(task_id="one").as_teardown()
    with refused:
        guarded(task_id="two").as_teardown(setups=EmptyOperator(task_id="begin"))

    def notify(document: str) -> None: ...

    for number, decorated in enumerate((teardown, teardown(on_failure_fail_dagrun=True))):
        for name in ("call", "expand"):  # the decorated function cannot be used again after a failure
            ending = decorated(idempotent_task(task_id=f"{name}_{number}", operation=f"do_{number}")(notify))
            with refused:
                ending(document="A") if name == "call" else ending.expand(document=["A"])


# -- default_args --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("operation", "send"), ("document", "A"), ("documents", ["A"]), ("document_key", "id"),
     ("fingerprint_fields", ["id"]), ("python_callable", send), ("retired_operations", ["x"])],
)  # fmt: skip
def test_default_args_do_not_leak_into_the_key(name: str, value: Any) -> None:
    from airflow.sdk import DAG

    others = {"task_id": "send", "python_callable": lambda: None}
    others.pop(name, None)
    with (
        DAG("parsed", schedule=None, default_args={name: value}),
        pytest.raises(ConfigurationError, match=f"{name} of"),
    ):
        IdempotentOperator(**others)


def test_default_args_do_not_leak_into_a_mapped_task() -> None:
    from airflow.sdk import DAG

    with (
        DAG("parsed", schedule=None, default_args={"operation": "send"}),
        pytest.raises(ConfigurationError, match="operation of"),
    ):
        IdempotentOperator.partial(task_id="send", python_callable=send).expand(document=["A"])


def test_what_is_given_to_the_task_itself_does_not_leak() -> None:
    from airflow.sdk import DAG

    with DAG(
        "parsed", schedule=None, default_args={"operation": "of another operator", "document": "its own"}
    ):
        task = guarded(operation="send", document="A", documents=None)
        IdempotentOperator.partial(task_id="m", operation="m", python_callable=send).expand(document=["A"])
    assert (task.operation, task.document) == ("send", "A")


def test_default_args_of_other_operators_do_no_harm() -> None:
    from airflow.sdk import DAG

    with DAG("parsed", schedule=None, default_args={"namespace": "k8s", "verify": False, "fail_fast": True}):
        guarded()


def test_default_args_may_say_what_all_tasks_share() -> None:
    from airflow.sdk import DAG

    shared = {
        "key_namespace": "statements",
        "business_date": month_end(),
        "side_effect": External(),
        "cycle": "1",
    }
    with DAG("parsed", schedule=None, default_args=shared):
        guarded(task_id="one")
        with pytest.raises(ConfigurationError, match="have one key"):
            IdempotentOperator.partial(task_id="two", operation="one", python_callable=send).expand(
                document=["A"]
            )


# -- mapped tasks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partial", "expand", "says"),
    [
        ({"on_duplicate": "ignore"}, {"document": ["A"]}, "on_duplicate"),
        ({"side_effect": "database"}, {"document": ["A"]}, "connection"),
        ({"documents": ["A"]}, {"document": ["A"]}, "both given"),
        ({}, {"op_kwargs": [{"a": 1}]}, "names no document"),
        ({}, {"operation": ["a", "b"]}, "neither templated nor mapped"),
        ({"call_per": "batch"}, {"document": ["A"]}, "batch"),
    ],
)
def test_a_mapped_task_is_checked_as_well(
    dag: DAG, partial: dict[str, Any], expand: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        IdempotentOperator.partial(task_id="send", python_callable=send, **partial).expand(**expand)


def test_a_mapped_task_without_ledger_is_refused(monkeypatch: pytest.MonkeyPatch, dag: DAG) -> None:
    monkeypatch.delenv(SETTING)
    with pytest.raises(LedgerNotConfigured):
        IdempotentOperator.partial(task_id="send", python_callable=send).expand(document=["A"])


def test_mapped_tasks_that_work(dag: DAG) -> None:
    from airflow.sdk import task

    @task
    def chunks() -> list[dict[str, Any]]:
        return []

    def between(lo: int, hi: int) -> list[str]:
        return []

    mapped = functools.partial(IdempotentOperator.partial, python_callable=send)
    mapped(task_id="one").expand(document=["A", "B"])
    mapped(task_id="two").expand(document=chunks())
    mapped(task_id="three", documents=between).expand(op_kwargs=chunks())
    mapped(task_id="four").expand_kwargs([{"document": "A"}, {"document": "B"}])
    mapped(task_id="five").expand_kwargs(chunks())
    mapped(task_id="six", business_date=from_asset_extra()).expand(documents=[["A"], ["B"]])
    with pytest.raises(ConfigurationError, match="names no document"):
        mapped(task_id="seven").expand_kwargs([{"cycle": "1"}])


def test_op_args_that_only_the_run_will_tell(dag: DAG) -> None:
    from airflow.sdk import task

    @task
    def regions() -> list[str]:
        return []

    def send_to(region: str, document: str) -> None: ...

    guarded(task_id="one", python_callable=send_to, op_args=regions())
    mapped = IdempotentOperator.partial(task_id="two", python_callable=send_to, documents=["A"])
    mapped.expand(op_args=[["eu"], ["us"]])


def test_a_subclass_may_bring_what_its_tasks_do_not_name(dag: DAG) -> None:
    from airflow.sdk import TaskGroup

    class SendOperator(IdempotentOperator):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(operation="send", python_callable=send, documents=["A"], **kwargs)

    with TaskGroup("group"):
        mapped = SendOperator.partial(task_id="mapped").expand(cycle=["1", "2"])
        plain = SendOperator(task_id="plain")
    assert (plain.operation, mapped.unmap({"cycle": "1"}).operation) == ("send", "send")
    with pytest.raises(ConfigurationError, match="have one key"):
        guarded(task_id="other", operation="send")


# -- decorated functions -------------------------------------------------------------------------------------


def test_a_function_that_is_called_twice_needs_an_operation_each(dag: DAG) -> None:
    @idempotent_task
    def notify(document: str) -> None: ...

    notify(document="A")
    with pytest.raises(ConfigurationError, match="'notify__1' needs operation"):
        notify(document="B")


def test_a_function_that_is_called_twice_with_one_operation_is_refused(dag: DAG) -> None:
    @idempotent_task(operation="notify")
    def notify(document: str) -> None: ...

    notify(document="A")
    with pytest.raises(ConfigurationError, match=r"(?s)'notify' and 'notify__1' have one key.*override"):
        notify(document="B")


def test_a_function_that_is_mapped_twice_with_one_operation_is_refused(dag: DAG) -> None:
    @idempotent_task(operation="notify")
    def notify(document: str) -> None: ...

    notify.expand(document=["A"])
    with pytest.raises(ConfigurationError, match="have one key"):
        notify.expand(document=["B"])


def test_d07_a_mapped_task_that_is_made_a_setup_or_a_teardown_is_refused(dag: DAG) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator

    @idempotent_task
    def notify(document: str) -> None: ...

    mapped = IdempotentOperator.partial(task_id="one", python_callable=send).expand(document=["A"])
    for task in (mapped, notify.expand(document=["A"])):
        with pytest.raises(ConfigurationError, match="cannot be a setup"):
            task.as_setup()
        with pytest.raises(ConfigurationError, match="cannot be a setup"):
            EmptyOperator(task_id=f"end_{id(task)}").as_teardown(setups=task)
        with pytest.raises(ConfigurationError, match="cannot be a teardown"):
            task.as_teardown()


@pytest.mark.parametrize("name", ["operation", "key_namespace"])
def test_parts_of_every_key_are_not_mapped(dag: DAG, name: str) -> None:
    mapped = functools.partial(IdempotentOperator.partial, python_callable=send)
    with pytest.raises(ConfigurationError, match=rf"{name}: a fixed text"):
        mapped(task_id="one").expand(document=["A"], **{name: ["send"]})
    with pytest.raises(ConfigurationError, match=rf"{name}: a fixed text"):
        mapped(task_id="two").expand_kwargs([{"document": "A"}, {"document": "B", name: "send"}])


def test_a_decorated_setup_is_refused(dag: DAG) -> None:
    from airflow.sdk import setup

    @setup
    @idempotent_task
    def notify(document: str) -> None: ...

    with pytest.raises(ConfigurationError, match="cannot be a setup"):
        notify(document="A")
    with pytest.raises(ConfigurationError, match="cannot be a setup"):
        notify.override(task_id="m").expand(document=["A"])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda notify: notify("eu"), ConfigurationError, "takes payload, but neither"),
        (lambda notify: notify(documents=["A"]), TypeError, "region"),
        (lambda notify: notify("eu", "us", documents=["A"]), TypeError, "1 arguments by position"),
        (lambda notify: notify("eu", region="us", documents=["A"]), TypeError, "by position and by name"),
        (lambda notify: notify("eu", documents=["A"], payload=1), TypeError, "payload"),
        (lambda notify: notify("eu", documents=["A"], document="A"), ConfigurationError, "both given"),
        (
            lambda notify: notify.override(documents=["B"])("eu", documents=["A"]),
            ConfigurationError,
            "give it once",
        ),
        (lambda notify: notify.partial(payload=1), TypeError, "payload"),
        (lambda notify: notify.expand(region=["eu"]), ConfigurationError, "names no document"),
        (
            lambda notify: notify.partial(region="eu").expand(idempotency_key=["A"]),
            TypeError,
            "idempotency_key",
        ),
    ],
)
def test_calls_are_checked(dag: DAG, call: Any, error: type[Exception], says: str) -> None:
    @idempotent_task
    def notify(payload: Any, idempotency_key: str, region: str) -> None: ...

    with pytest.raises(error, match=says):
        call(notify)


def test_default_args_do_not_fill_what_the_operator_gives() -> None:
    from airflow.sdk import DAG

    @idempotent_task
    def notify(document: str, attempt: int, region: str) -> None: ...

    with DAG("parsed", schedule=None, default_args={"attempt": 3, "region": "eu"}) as dag:
        notify(document="A")
    assert dag.task_dict["notify"].op_kwargs == {"region": "eu"}


@pytest.mark.parametrize("name", ["document", "cycle"])
def test_a_function_as_a_part_of_the_key_is_refused_and_not_called_by_airflow(dag: DAG, name: str) -> None:
    given: dict[str, Any] = {"documents": None, "document": "A"} | {name: lambda: "A"}
    with pytest.raises(ConfigurationError, match=f"{name}=.* is a function, which nobody calls"):
        guarded(**given)


@pytest.mark.parametrize(
    ("parameter", "what"),
    [
        ({"expected": lambda document: 1}, "expected requires document, which nothing gives"),
        ({"expected": lambda idempotency_key: 1}, "expected requires idempotency_key"),
        ({"documents": lambda payload: []}, "documents requires payload"),
    ],
)
def test_what_is_asked_for_the_listing_knows_no_document(
    dag: DAG, parameter: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        guarded(**parameter)
    assert "the operator (business_date, cycle)" in str(caught.value)
