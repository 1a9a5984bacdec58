"""The reference pages and diagrams say what the code says."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from dataclasses import fields
from datetime import timedelta
from typing import Any, get_args

import pytest
import sqlalchemy as sa

import airflow_guard
from airflow_guard import testing
from airflow_guard.commands.main import _parser as guard_parser
from airflow_guard.core import errors
from airflow_guard.core.alerts.facts import AlertKind
from airflow_guard.core.alerts.message import Alert
from airflow_guard.core.checks import BOTH_EMPTY, TOTALS_MISMATCH
from airflow_guard.core.decisions import CONSEQUENCES
from airflow_guard.core.effects import External
from airflow_guard.core.errors import GuardError
from airflow_guard.core.states import TRANSITIONS, Phase, State
from airflow_guard.execution.spec import INJECTED
from airflow_guard.get_provider_info import get_provider_info
from airflow_guard.operators.endings import COUNTERS, PREFIX
from airflow_guard.reconciling.rules import BreakType
from airflow_guard.store.tables import Tables
from airflow_guard.testing import Moment, TestLedger
from tests.docs.pages import ROOT, all_pages, page, table_rows

OPERATOR = "docs/reference/operator.md"
ALERTS = "docs/reference/alerts.md"
RECONCILIATION = "docs/reference/reconciliation.md"
LEDGER = "docs/how-the-ledger-works.md"
CASES = (
    "The ordinary case: a new document",
    "A duplicate",
    "Two at the same moment",
    "A crash before the effect",
    "A crash inside the effect",
    "A crash after the effect",
    "A late report",
    "An unknown commit",
)


def code(cell: str) -> list[str]:
    """Return what stands between backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


# -- operator ---------------------------------------------------------------------------------------------


def documented_parameters(section: str, name_of_page: str = OPERATOR) -> dict[str, Any]:
    """Return parameters and defaults as a section of a page has them; ``...`` stands for required."""
    found: dict[str, Any] = {}
    for row in table_rows(page(name_of_page).section(section)):
        ((name,), default) = code(row[0]), row[1]
        assert name not in found, name
        found[name] = ... if default == "required" else eval(code(default)[0], {"timedelta": timedelta})
    return found


def test_every_parameter_of_the_operator_is_there_with_its_default(airflow_home: object) -> None:
    from airflow_guard import IdempotentOperator

    parameters = inspect.signature(IdempotentOperator.__init__).parameters.values()
    expected = {
        parameter.name: ... if parameter.default is parameter.empty else parameter.default
        for parameter in parameters
        if parameter.name not in ("self", "kwargs")
    }
    assert documented_parameters("Parameters") == expected


def test_the_templated_parameters_are_marked(airflow_home: object) -> None:
    from airflow.providers.standard.operators.python import PythonOperator

    from airflow_guard import IdempotentOperator

    rows = table_rows(page(OPERATOR).section("Parameters"))
    marked = {code(row[0])[0] for row in rows if row[2].startswith("(t) ")}
    assert marked == set(IdempotentOperator.template_fields) - set(PythonOperator.template_fields)


def test_every_parameter_of_an_external_effect_is_there_with_its_default() -> None:
    signature = inspect.signature(External)
    expected = {name: parameter.default for name, parameter in signature.parameters.items()}
    assert documented_parameters("External and Database") == expected


def own_parameters(function: Any) -> dict[str, Any]:
    """Return the parameters of a function with their defaults."""
    return {
        parameter.name: ... if parameter.default is parameter.empty else parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "kwargs")
    }


def test_every_parameter_of_the_sensor_is_there_with_its_default(airflow_home: object) -> None:
    from airflow_guard import ReconciliationSensor

    documented = documented_parameters("Parameters", RECONCILIATION)
    assert documented == own_parameters(ReconciliationSensor.__init__)
    rows = table_rows(page(RECONCILIATION).section("Parameters"))
    marked = {code(row[0])[0] for row in rows if row[2].startswith("(t) ")}
    assert marked == set(ReconciliationSensor.template_fields)


def test_every_parameter_of_the_check_of_one_side_is_there_with_its_default(airflow_home: object) -> None:
    from airflow_guard import DuplicateCheckOperator

    documented = documented_parameters("DuplicateCheckOperator", RECONCILIATION)
    assert documented == own_parameters(DuplicateCheckOperator.__init__)


def test_every_parameter_of_a_side_is_there_with_its_default() -> None:
    expected = own_parameters(airflow_guard.Side.__init__) | {"parameters": {}, "columns": {}}
    assert documented_parameters("Side", RECONCILIATION) == expected


def test_every_parameter_of_an_alert_is_there_with_its_default(airflow_home: object) -> None:
    from airflow_guard import ExpectedOperation, GuardNotifier, GuardWatchOperator

    for made in (GuardNotifier, GuardWatchOperator, ExpectedOperation):
        assert documented_parameters(made.__name__, ALERTS) == own_parameters(made.__init__)


def test_every_kind_of_alert_and_every_fact_is_there() -> None:
    kinds = {code(row[0])[0] for row in table_rows(page(ALERTS).section("Kinds"))}
    assert kinds == {kind.value for kind in AlertKind}
    rows = table_rows(page(ALERTS).section("What a transport can say"))
    assert {name for row in rows for name in code(row[0])} == {f"alert.{each.name}" for each in fields(Alert)}


def test_every_counter_is_there() -> None:
    rows = table_rows(page(ALERTS).section("Metrics"))
    assert [code(row[0])[0] for row in rows] == [PREFIX + name for name in COUNTERS]


def test_every_type_of_break_is_there() -> None:
    documented = {code(row[0])[0] for row in table_rows(page(RECONCILIATION).section("Breaks"))}
    assert documented == {each.value for each in BreakType} | {TOTALS_MISMATCH, BOTH_EMPTY}


def test_everything_that_a_callable_gets_is_there() -> None:
    rows = table_rows(page(OPERATOR).section("What the callable gets"))
    assert {code(row[0])[0] for row in rows} == set(INJECTED)


def test_what_must_not_come_from_default_args_is_listed(airflow_home: object) -> None:
    from airflow_guard.operators.declaration import NOT_BY_DEFAULT_ARGS

    text = page(OPERATOR).section("Refused when the DAG is parsed")
    (sentence,) = re.findall(r"- ([^-]*?) in `default_args`", text)
    assert set(code(sentence)) == set(NOT_BY_DEFAULT_ARGS)


# -- configuration ----------------------------------------------------------------------------------------


def test_every_option_is_there_with_its_default() -> None:
    options = get_provider_info()["config"]["airflow_guard"]["options"]
    expected = {name: option["default"] for name, option in options.items()}
    documented = {}
    for row in table_rows(page("docs/reference/configuration.md").section("Configuration")):
        if code(row[0])[0] in options:
            documented[code(row[0])[0]] = None if row[1] == "none" else code(row[1])[0]
    assert documented == expected


# -- command line -----------------------------------------------------------------------------------------


def subparsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands that are shown."""
    (action,) = [a for a in guard_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    shown = {choice.dest for choice in action._choices_actions}
    return {name: parser for name, parser in action.choices.items() if name in shown}


def test_every_command_is_there() -> None:
    rows = table_rows(page("docs/reference/cli.md").section("Command line"))
    listed = [code(row[0])[0] for row in rows]
    assert [name for name in listed if name.isalpha() and name.islower()] == list(subparsers())


@pytest.mark.parametrize(
    "name",
    [
        "migrate",
        "show",
        "resolve",
        "breaks",
        "adopt",
        "rename",
        "rerun",
        "purge",
        "failover",
        "export",
        "diagnose",
        "audit",
    ],
)
def test_every_option_of_a_command_is_there(name: str) -> None:
    text = page("docs/reference/cli.md")
    shared = {flag for row in table_rows(text.section("Which ledger")) for flag in code(row[0])}
    documented = {flag for row in table_rows(text.section(name)) for flag in code(row[0])} | shared
    options = {each for each in documented if each.startswith("-")}
    positions = {word for each in documented - options for word in each.replace("…", "").split()}
    actions = subparsers()[name]._actions
    assert options == {flag for action in actions for flag in action.option_strings} - {"-h", "--help"}
    assert positions == {str(action.metavar) for action in actions if not action.option_strings}


# -- errors -----------------------------------------------------------------------------------------------


def error_classes() -> dict[str, type[GuardError]]:
    """Return all errors of the tree by name."""
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if issubclass(value, GuardError)}


def tree(text: str) -> list[tuple[int, str]]:
    """Return the names in a drawn tree with their depths."""
    lines = []
    for line in text.splitlines():
        match = re.match(r"^([│├└─ ]*)(\w+)", line)
        if match:
            lines.append((len(match[1]) // 4, match[2]))
    return lines


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    (drawn,) = [f.text for f in page("docs/reference/errors.md").fences if f.language == "text"]

    def of(cls: type[GuardError], depth: int = 0) -> list[tuple[int, str]]:
        below = [each for each in error_classes().values() if each.__bases__ == (cls,)]
        return [(depth, cls.__name__), *(line for each in below for line in of(each, depth + 1))]

    assert tree(drawn) == of(GuardError)


def test_every_error_says_whether_a_retry_helps() -> None:
    rows = [row for row in table_rows(page("docs/reference/errors.md").text) if len(row) == 4]
    documented = {code(row[0])[0]: row[2] for row in rows}
    expected = {name: "yes" if cls.retryable else "no" for name, cls in error_classes().items()}
    assert documented | {"GuardError": "no"} == expected | {"DocumentsFailed": "depends"}
    assert all(row[1] and row[3] for row in rows)


# -- tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "execution",
        "task_run",
        "lease",
        "event",
        "alias",
        "reconciliation",
        "break",
        "alert",
        "rerun",
        "horizon",
    ],
)
def test_every_column_and_index_of_a_table_is_there(name: str) -> None:
    table = Tables().metadata.tables[f"guard_{name}"]
    rows = table_rows(page("docs/reference/tables.md").section(f"guard_{name}"))
    columns = [code(row[0])[0] for row in rows if row[0].startswith("`") and _is_type(row[1])]
    assert columns == [column.name for column in table.columns]
    indexes = {code(row[0])[0]: code(row[1]) for row in rows if row[0].startswith("`guard_")}
    unique = [each for each in table.constraints if isinstance(each, sa.UniqueConstraint)]
    assert indexes == {str(each.name): [c.name for c in each.columns] for each in [*table.indexes, *unique]}
    if name != "lease":
        (primary,) = [code(row[1]) for row in rows if row[0] == "primary key"]
        assert primary == [column.name for column in table.primary_key]


def _is_type(cell: str) -> bool:
    return re.fullmatch(r"date|instant|integer|bigint|smallint|32 hex|long text|text \d+", cell) is not None


def test_the_kinds_of_events_are_those_that_are_written() -> None:
    rows = table_rows(page("docs/reference/tables.md").section("guard_event"))
    documented = {kind for row in rows if len(row) == 2 for kind in code(row[0])}
    written: set[str] = set()
    for path in (ROOT / "airflow_guard").rglob("*.py"):
        written |= kinds_in(ast.parse(path.read_text(encoding="utf-8")))
    assert documented == written | {each.event for each in CONSEQUENCES.values()}


def kinds_in(module: ast.Module) -> set[str]:
    """Return the kinds of events in a module, as it gives them to ``AuditEvent`` or to what makes one."""
    kinds = set()
    position = {"AuditEvent": 0, "_event": 0, "record": 3, "_note": 0, "note": 1}
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = position.get(name)
            if place is not None and len(node.args) > place and isinstance(node.args[place], ast.Constant):
                kinds.add(str(node.args[place].value))  # type: ignore[attr-defined]
    return kinds


# -- states and diagrams ----------------------------------------------------------------------------------


def test_the_state_diagram_has_every_transition_and_no_other() -> None:
    (diagram,) = [f.text for f in page(LEDGER).fences if f.text.startswith("stateDiagram-v2")]
    drawn = set(re.findall(r"^ +(\S+) --> (\S+): (.+)$", diagram, re.MULTILINE))
    expected = {
        (transition.source or "[*]", transition.target.value, transition.event.value.replace("_", " "))
        for transition in TRANSITIONS
    }
    assert drawn == expected


def test_every_state_and_phase_is_explained() -> None:
    text = page(LEDGER).section("The states")
    assert [code(row[0])[0] for row in table_rows(text)] == [
        State.IN_PROGRESS, State.COMPLETED, State.FAILED, State.REJECTED, State.DROPPED, State.IN_DOUBT
    ]  # fmt: skip
    assert set(Phase) <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_sequence_diagram(case: str) -> None:
    assert "```mermaid\nsequenceDiagram\n" in page(LEDGER).section(case)


def test_the_diagrams_are_well_formed() -> None:
    for fence in page(LEDGER).fences:
        if not fence.text.startswith("sequenceDiagram"):
            continue
        lines = [line.strip() for line in fence.text.splitlines()[1:]]
        people = {line.split()[1] for line in lines if line.startswith("participant ")}
        for line in lines:
            arrow = re.fullmatch(r"(\w+)--?>>(\w+): .+", line)
            note = re.fullmatch(r"Note over ([\w,]+): .+", line)
            used = set(arrow.groups()) if arrow else set(note[1].split(",")) if note else set()
            known = line.split(" ")[0] in ("participant", "alt", "else", "end")
            assert used or known, f"{fence}: {line}"
            assert used <= people, f"{fence}: {line}"
            assert ";" not in line, f"{fence}: Mermaid ends a statement at a semicolon"
        assert lines.count("end") == sum(line.startswith("alt ") for line in lines), fence


# -- public names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(airflow_guard.__all__) - {"__version__"}))
def test_every_public_name_is_documented(name: str) -> None:
    pages = "\n".join(page(each).text for each in all_pages() if each.startswith("docs/reference/"))
    assert re.search(rf"`{name}\b", pages), name
    assert getattr(airflow_guard, name).__doc__


def test_every_name_of_the_testing_module_is_documented() -> None:
    text = page("docs/how-to/test-your-callable.md")
    rows = table_rows(text.section("What the module has"))
    documented = {word for row in rows for each in code(row[0]) for word in re.findall(r"\w+", each)}
    methods = {name for name in vars(TestLedger) if not name.startswith("_")}
    assert set(testing.__all__) | methods <= documented
    moments = {row[0].strip('`"') for row in table_rows(text.section("Let the process die"))}
    assert moments == set(get_args(Moment))
