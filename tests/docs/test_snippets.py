"""Every snippet of the pages runs, or is at least read by what it is meant for.

The words after ```` ```python ```` say how:

* nothing: executed, the snippets of a page one after another in one namespace, which begins with
  ``tests/docs/assumed.py``. The DAGs that it makes are checked and serialised, as when Airflow parses them.
* ``run``: in addition, its DAGs are run with ``dag.test()`` for 30 January 2026 and succeed.
* ``refused``: raises ``ConfigurationError``.
"""

from __future__ import annotations

import configparser
import doctest
import json
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_guard.commands.main import _parser as guard_parser
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.get_provider_info import get_provider_info
from airflow_guard.testing import TestLedger
from tests.docs import assumed
from tests.docs.pages import ROOT, Fence, all_pages, fences, page
from tests.docs.parsing import noted_dags, serialise
from tests.docs.shell import commands_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

# Their snippets are run as the steps that they are, by test_tutorial.py.
BY_STEPS = {"docs/tutorial.md"}
JANUARY_30 = datetime(2026, 1, 30, tzinfo=UTC)
_KNOWN_WORDS = {"run", "refused"}
_OTHER_PROGRAMS = {"export", "mkdir", "python", "pip", "rm"}


@pytest.mark.parametrize("name", sorted({f.page for f in fences("python")} - BY_STEPS))
def test_the_python_of_a_page_runs(
    name: str,
    airflow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_dag_test: Callable[..., DagRun],
) -> None:
    connection = {"conn_type": "sqlite", "host": f"{tmp_path}/bank.db"}
    monkeypatch.setenv("AIRFLOW_CONN_CORE_BANKING", json.dumps(connection))
    monkeypatch.chdir(tmp_path)
    namespace = assumed.names(tmp_path)
    for fence in page(name).fences:
        if fence.language != "python":
            continue
        assert set(fence.words) <= _KNOWN_WORDS, f"{fence}: unknown words {fence.words}"
        if "refused" in fence.words:
            with pytest.raises(ConfigurationError):
                execute(fence, dict(namespace))
            continue
        for dag in execute(fence, namespace):
            serialise(dag)
            if "run" in fence.words:
                run = run_dag_test(dag, logical_date=JANUARY_30)
                assert run.state == "success", fence


@pytest.mark.parametrize("fence", fences("pycon"), ids=str)
def test_an_interactive_example_gives_what_it_says(fence: Fence) -> None:
    test = doctest.DocTestParser().get_doctest(fence.text, {}, str(fence), fence.page, fence.line)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    wrong: list[str] = []
    runner.run(test, out=wrong.append)
    assert not wrong, "".join(wrong)


@pytest.mark.parametrize("fence", fences("bash"), ids=str)
def test_a_command_line_is_one_that_the_program_takes(fence: Fence, airflow_home: Path) -> None:
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
    for command in commands_of(fence.text):
        program, *arguments = command
        if program == "airflow-guard":
            parse(guard_parser(), arguments, fence)
        elif program == "airflow":
            parse_airflow(arguments, fence)
        elif program == "make":
            wanted = [argument for argument in arguments if "=" not in argument]
            assert set(wanted) <= targets, f"{fence}: make {wanted}"
        else:
            assert program in _OTHER_PROGRAMS, f"{fence}: {program}"


def parse(parser: Any, arguments: list[str], fence: Fence) -> None:
    """Let a parser read a command line; what it does not take fails the test."""
    try:
        given, unknown = parser.parse_known_args(arguments)
    except SystemExit:
        pytest.fail(f"{fence}: {shlex.join(arguments)}")
    assert not unknown, f"{fence}: {unknown}"
    assert not getattr(getattr(given, "command", None), "hidden", False), f"{fence}: not in this version"


def parse_airflow(arguments: list[str], fence: Fence) -> None:
    """Let Airflow read a command line of its own."""
    from airflow.cli import cli_parser

    if arguments[0] == "guard":  # our own commands, where Airflow takes them
        parse(guard_parser(), arguments[1:], fence)
        return
    parse(cli_parser.get_parser(), arguments, fence)


@pytest.mark.parametrize("fence", fences("ini"), ids=str)
def test_an_option_in_a_configuration_file_exists(fence: Fence) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(fence.text)
    options = get_provider_info()["config"]["airflow_guard"]["options"]
    assert set(parser["airflow_guard"]) <= set(options), fence


@pytest.mark.parametrize("fence", [f for f in fences("sql") if not f.words], ids=str)
def test_a_query_runs_on_a_ledger(fence: Fence) -> None:
    with TestLedger() as ledger, ledger.connection() as connection:
        connection.exec_driver_sql(fence.text)


def test_every_block_says_in_which_language_it_is() -> None:
    known = {"python", "pycon", "bash", "text", "mermaid", "sql", "ini", "csv"}
    wrong = [str(f) for name in all_pages() for f in page(name).fences if f.language not in known]
    assert not wrong


def execute(fence: Fence, namespace: dict[str, Any]) -> list[DAG]:
    """Execute a snippet and return the DAGs that it made."""
    # Blank lines in front, so that a traceback names the line of the page.
    code = compile("\n" * (fence.line - 1) + fence.text, str(ROOT / fence.page), "exec", dont_inherit=True)
    with noted_dags() as made:
        exec(code, namespace)
    return list(made.values())
