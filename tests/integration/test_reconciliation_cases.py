"""Public failures of this kind of check, by their number, through the sensor and real databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_guard import (
    AmountError,
    BothEmpty,
    BreaksFound,
    ConfigurationError,
    DuplicateCheckOperator,
    GuardFailure,
    GuardRetry,
    Side,
    SideUnavailable,
)
from airflow_guard.hooks import connections
from tests.airflow_runs import AirflowRun, start_run
from tests.databases import databases
from tests.integration.sides import GOOD, JANUARY_30, LEDGER, WHERE, Sides

if TYPE_CHECKING:
    from tests.integration.conftest import Business

pytestmark = databases("sqlite")
also_on_postgres = databases("sqlite", "postgres_embedded")


@pytest.fixture
def sides(business: Business) -> Sides:
    return Sides(business)


def by_query(source: str, target: str, **more: Any) -> dict[str, Side]:
    """Two sides that are queries: ``SELECT …`` of the columns ``document_no`` and ``amount``."""
    more = {"key": "document_no", **more}
    return {"source": Side(LEDGER, sql=source, **more), "target": Side(LEDGER, sql=target, **more)}


# ---- C17: what is no evidence is no pass -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "more", "error"),
    [
        ([], [], {}, BothEmpty),
        ([], [], {"allow_empty": True}, None),
        ([None, None, None], [None, None, None], {}, BreaksFound),
        ([None, None, None], [None, None, None], {"allow_missing_amounts": True}, None),
        (["5.00", "5.00", "0.00"], [None, None, None], {}, BreaksFound),
        (["5.00", "5.00", None], ["5.00", "5.00", "0.00"], {}, BreaksFound),
        (["5.00", "5.00", None], ["5.00", "5.00", "0.00"], {"allow_missing_amounts": True}, BreaksFound),
    ],
)
def test_c17_null_zero_and_no_row_are_three_things(
    sides: Sides, source: list[str | None], target: list[str | None], more: dict[str, Any], error: Any
) -> None:
    sides.add("booked", *[(f"D-{place}", amount) for place, amount in enumerate(source)])
    sides.add("posted", *[(f"D-{place}", amount) for place, amount in enumerate(target)])
    ended = sides.run(**more).last("reconcile")
    if error is None:
        assert ended.state == "success"
    else:
        assert type(ended.cause) is error


def test_c17_rows_without_amount_are_counted_in_the_message(sides: Sides) -> None:
    for side in ("booked", "posted"):
        sides.add(side, ("D-1", None), ("D-2", None), ("D-3", None))
    error = str(sides.run().last("reconcile").error)
    assert "3" in error
    assert "without" in error


def test_c17_columns_are_read_by_name(sides: Sides) -> None:
    sides.both()
    swapped = by_query(
        "SELECT amount, document_no FROM booked", "SELECT document_no, account, amount FROM posted"
    )
    assert sides.run(**swapped).states() == {"reconcile": "success"}


# ---- C29, R09: amounts ---------------------------------------------------------------------------------------


@also_on_postgres
def test_c29_equal_amounts_of_another_scale_or_sign_of_zero_match(sides: Sides) -> None:
    sides.add("booked", ("A", "-0.19"), ("B", "0.00"), ("C", "1.10"), ("D", "0"))
    sides.add("posted", ("A", "-0.1900"), ("B", "-0"), ("C", "1.1"), ("D", "-0.00"))
    run = sides.run()
    assert run.states() == {"reconcile": "success"}
    assert "-0" not in [each["source"]["amounts"]["amount"] for each in run.result("reconcile")["totals"]]


def test_c29_a_cent_is_a_difference_and_said_in_full(sides: Sides) -> None:
    sides.add("booked", ("A", "-0.19"))
    sides.add("posted", ("A", "-0.18"))
    sides.run()
    (row,) = sides.breaks()
    assert float(row.variance) == 0.01
    assert (float(row.source_value), float(row.target_value)) == (-0.19, -0.18)


@also_on_postgres
def test_c29_floats_are_refused_or_settled_by_a_tolerance(sides: Sides) -> None:
    tenths = " UNION ALL ".join(
        f"SELECT '{n}' AS document_no, {value} AS amount" for n, value in enumerate(_TENTHS)
    )
    exact = " UNION ALL ".join(
        f"SELECT '{n}' AS document_no, {value} AS amount" for n, value in enumerate(_EXACT)
    )
    parameters = by_query(tenths, exact)
    refused = sides.run(**parameters).last("reconcile")
    assert isinstance(refused.cause, (AmountError, ConfigurationError))
    assert "float" in str(refused.error)
    assert sides.run(**parameters, absolute_tolerance="0.001").states() == {"reconcile": "success"}


_TENTHS = ["CAST(0.1 AS DOUBLE PRECISION)"] * 10
_EXACT = ["CAST('0.1' AS NUMERIC(12, 2))"] * 10


@pytest.mark.parametrize("zero", ["0", "0.0", "CAST('0.00' AS NUMERIC(9, 2))", "'0'", "'0.00'"])
def test_r09_zero_is_an_amount_and_not_nothing(sides: Sides, zero: str) -> None:
    if zero == "0.0" and sides.business.database.kind == "sqlite":
        zero = "0"  # SQLite's 0.0 is a float, which c29 is about
    parameters = by_query(
        f"SELECT 'A' AS document_no, {zero} AS amount", "SELECT 'A' AS document_no, 0 AS amount"
    )
    if zero.startswith("'"):
        parameters["target"] = Side(
            LEDGER, sql="SELECT 'A' AS document_no, '0.000' AS amount", key="document_no"
        )
    run = sides.run(**parameters)
    assert run.states() == {"reconcile": "success"}
    assert run.result("reconcile")["source_count"] == 1


@also_on_postgres
@pytest.mark.parametrize("value", ["", "abc", "1,234.50"])
def test_r09_what_is_no_number_is_an_error_that_names_it(sides: Sides, value: str) -> None:
    source, target = (f"SELECT 'A' AS document_no, '{each}' AS amount" for each in (value, "1.00"))
    ended = sides.run(**by_query(source, target)).last("reconcile")
    assert type(ended.cause) is AmountError
    assert "amount" in str(ended.error)
    if value:
        assert value in str(ended.error)


def test_r09_a_tolerance_of_zero_is_a_tolerance(sides: Sides) -> None:
    sides.add("booked", ("A", "1.00"))
    sides.add("posted", ("A", "1.01"))
    assert sides.run(absolute_tolerance=0).states() == {"reconcile": "failed"}
    assert sides.run(absolute_tolerance="0.01").states() == {"reconcile": "success"}


# ---- C31: currencies -----------------------------------------------------------------------------------------


@also_on_postgres
def test_c31_currencies_are_not_added_up(sides: Sides) -> None:
    sides.add("booked", ("A", "900.00"), currency="USD")
    sides.add("booked", ("B", "9000.00"), currency="RUB")
    sides.add("posted", ("A", "9000.00"), currency="USD")
    sides.add("posted", ("B", "900.00"), currency="RUB")
    refused = sides.run().last("reconcile")
    assert isinstance(refused.cause, ConfigurationError)
    assert "group_by" in str(refused.error)

    totals = {name: Side(LEDGER, table=table, where=WHERE) for name, table in _TABLES.items()}
    run = sides.run(group_by=["currency"], **totals)
    assert isinstance(run.last("reconcile").cause, BreaksFound)
    assert [row.group_values for row in sides.breaks()] == ['{"currency": "RUB"}', '{"currency": "USD"}']


def test_c31_another_spelling_and_no_currency_are_groups_of_their_own(sides: Sides) -> None:
    sides.add("booked", ("A", "1.00"), currency="USD")
    sides.add("posted", ("A", "1.00"), currency="usd")
    sides.add("posted", ("B", "1.00"), currency="USD ")
    sides.add("posted", ("C", "1.00"), currency=None)
    totals = {name: Side(LEDGER, table=table, where=WHERE) for name, table in _TABLES.items()}
    run = sides.run(group_by=["currency"], **totals, task_id="totals")
    assert len(sides.breaks()) == 4
    assert '{"currency": null}' in {row.group_values for row in sides.breaks()}
    assert run.states() == {"totals": "failed"}


_TABLES = {"source": "booked", "target": "posted"}


# ---- C33: hostile names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["booked; DROP TABLE booked--", "booked WHERE 1=1", 'boo"ked', "a.b.c.d.e", "booked\n--", "", " "]
)
def test_c33_a_name_that_is_none_sends_no_statement(
    sides: Sides, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.both()
    asked: list[str] = []
    monkeypatch.setattr(connections, "engine_of", asked.append)
    source = Side(LEDGER, table="{{ dag_run.conf['table'] }}", key="document_no", where=WHERE)
    run = start_run(
        sides.dag(source=source), run_type="manual", logical_at=JANUARY_30, conf={"table": name}
    ).go()
    ended = run.last("reconcile")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, ConfigurationError)
    assert asked == []
    assert sides.checks() == []


@pytest.mark.parametrize("parameter", ["amount", "key", "columns", "group_by"])
def test_c33_columns_are_names_too(sides: Sides, parameter: str) -> None:
    wrong = "amount) FROM booked; DROP TABLE booked; --"
    with pytest.raises(ConfigurationError):
        if parameter == "group_by":
            sides.dag(group_by=[wrong])
        Side(LEDGER, table="booked", **{parameter: {"amount": wrong} if parameter == "columns" else wrong})


@also_on_postgres
def test_c33_a_name_given_in_parts_is_quoted_and_works(sides: Sides) -> None:
    sides.both()
    sides.run_sql('CREATE TABLE "Pay-ments" AS SELECT * FROM booked')
    source = Side(LEDGER, table=["Pay-ments"], key="document_no", where=WHERE)
    assert sides.run(source=source).states() == {"reconcile": "success"}


@also_on_postgres
def test_c33_hostile_documents_are_stored_literally(sides: Sides) -> None:
    hostile = "x'); DELETE FROM guard_break;--"
    sides.add("booked", (hostile, "1.00"))
    sides.add("posted", ("%(x)s {{ ds }} 🧾", "1.00"))
    sides.run()
    assert {row.document for row in sides.breaks()} == {hostile, "%(x)s {{ ds }} 🧾"}


# ---- One side ------------------------------------------------------------------------------------------------


def once(sides: Sides, **parameters: Any) -> AirflowRun:
    """Run a check of one side."""
    from datetime import UTC, datetime

    from airflow.sdk import DAG

    defaults: dict[str, Any] = {
        "task_id": "once", "retries": 1,
        "side": Side(LEDGER, table="posted", key="document_no", where=WHERE),
    }  # fmt: skip
    with DAG(sides.business.dag_id, schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        DuplicateCheckOperator(**{**defaults, **parameters})
    return start_run(dag, logical_at=JANUARY_30).go()


def test_keys_that_occur_once_pass(sides: Sides) -> None:
    sides.add("posted", *GOOD)
    assert once(sides).result("once") == {
        "business_date": "2026-01-30", "records": 3, "duplicates": 0, "capped": False, "documents": [],
    }  # fmt: skip


def test_keys_that_occur_more_than_once_are_named(sides: Sides) -> None:
    sides.add("posted", *GOOD, *GOOD[:2], ("D-1", "1.00"), (None, "1.00"))
    ended = once(sides).last("once")
    assert (ended.state, type(ended.error), type(ended.cause)) == ("failed", GuardFailure, BreaksFound)
    for said in ("D-1 (3 rows)", "D-2 (2 rows)", "1 rows without key", "2026-01-30"):
        assert said in str(ended.error)
    assert "D-3" not in str(ended.error)


def test_two_statements_for_one_account_and_date_are_found(sides: Sides) -> None:
    sides.add("posted", ("S-1", "1.00"), ("S-2", "1.00"), account="0815")
    side = Side(LEDGER, table="posted", key=["account", "business_date"])
    run = once(sides, side=side, on_break="warn")
    assert run.states() == {"once": "success"}
    assert run.result("once")["documents"] == ["0815 / 2026-01-30"]


def test_one_side_may_be_down(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BOOKS", "postgres://x@127.0.0.1:9/x")
    side = Side("books", table="posted", key="document_no")
    ended = once(sides, side=side).last("once")
    assert (ended.state, type(ended.error), type(ended.cause)) == (
        "up_for_retry",
        GuardRetry,
        SideUnavailable,
    )


@pytest.mark.parametrize(
    "parameters",
    [{"side": "posted"}, {"side": Side(LEDGER, table="posted")}, {"on_break": "ask"}, {"max_breaks": 0}],
)
def test_a_check_of_one_side_that_cannot_work_is_refused(sides: Sides, parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        once(sides, **parameters)


def test_a_connection_that_does_not_exist_or_has_no_engine_is_named(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MAILER", "http://127.0.0.1")
    for conn_id in ("nowhere", "mailer"):
        ended = sides.run(source=Side(conn_id, table="booked", key="document_no", where=WHERE)).last(
            "reconcile"
        )
        assert isinstance(ended.cause, ConfigurationError)
        assert repr(conn_id) in str(ended.error)
    assert sa.inspect(sides.engine).has_table("booked")
