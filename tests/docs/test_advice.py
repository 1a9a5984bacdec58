"""What messages advise exists: each command, option, parameter and setting that a text of the package names.

That an advice works when it is followed is shown in tests/integration/test_advice.py.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import airflow_guard
from airflow_guard.commands.definitions import COMMANDS
from airflow_guard.commands.main import _parser
from airflow_guard.core import commands
from airflow_guard.get_provider_info import get_provider_info

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(airflow_guard.__file__).parent
GAP = "\N{WHITE SQUARE}"
"""Stands for what a message puts in when it is made."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_COMMAND = re.compile(r"airflow-guard (?P<name>[a-z]+)(?P<rest>(?: +(?:\"[^\"]*\"|[^\s\"();:]+))*)")
_PARAMETER = re.compile(
    r"(?<![\w.:/?&-])(?P<name>[a-z][a-z_]+)=(?=[\"'\[{(…\d]|True|False|None|timedelta|External|Database|"
    + GAP
    + ")"
)
_SETTING = re.compile(r"\[airflow_guard\] (?!of\b)(?P<name>[a-z_]+)")

NOT_OURS = {
    # of Python, HTML, drivers, and the testing helpers
    "encoding", "hours", "style", "href", "ssl_mode", "at", "restkey",
}  # fmt: skip
"""Words before an equals sign that are not parameters of this package."""


@cache
def texts() -> tuple[tuple[str, int, str], ...]:
    """Return every text of the package that is no docstring: module, line, text with gaps."""
    return tuple(
        each for path in sorted(ROOT.rglob("*.py")) if "demo" not in path.parts for each in _texts_of(path)
    )


def _texts_of(path: Path) -> Iterator[tuple[str, int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(child) for child in ast.walk(node) if child is not node}
    module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield module, node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [str(each.value) if isinstance(each, ast.Constant) else GAP for each in node.values]
            yield module, node.lineno, "".join(parts)


def options_of(name: str) -> set[str]:
    """Return the options of a command."""
    command = next(each for each in COMMANDS if each.name == name)
    return {flag for argument in command.arguments for flag in argument.flags if flag.startswith("--")}


ALL_OPTIONS = set[str]().union(*(options_of(command.name) for command in COMMANDS)) | {"--help", "--version"}
OF_MODULE = {command.function.partition(":")[0]: command.name for command in COMMANDS} | {
    "airflow_guard.core.diagnosis": "diagnose",
    "airflow_guard.acts.withdraw": "rerun",
    "airflow_guard.acts.reversal": "rerun",
    "airflow_guard.commands.log_sources": "diagnose",
}
"""The command whose texts a module holds: an option that is named there without a command is one of its own."""


def test_every_command_in_a_text_exists_with_its_options() -> None:
    seen = 0
    for module, line, text in texts():
        for found in _COMMAND.finditer(text):
            if found["name"] not in {command.name for command in COMMANDS}:
                assert not found["name"].isidentifier() or f"airflow-guard {found['name']}" in PROSE, (
                    module,
                    line,
                    text,
                )
                continue
            seen += 1
            wrong = set(_OPTION.findall(found["rest"])) - options_of(found["name"])
            assert not wrong, f"{module}:{line} names {wrong}, which {found['name']} does not have: {text}"
    assert seen > 15


DESCRIPTIONS = {command.description for command in COMMANDS}
"""They stand beside the act, and may name what another command does."""
PROSE = {"airflow-guard needs", "airflow-guard here", "airflow-guard worker", "airflow-guard writer"}


def test_every_option_in_a_text_is_one_of_the_command_that_says_it() -> None:
    for module, line, text in texts():
        alone = set(_OPTION.findall(_COMMAND.sub("", text)))
        if not alone or (text.startswith("--") and " " not in text) or "airflow backfill" in text:
            continue
        command = None if text in DESCRIPTIONS else OF_MODULE.get(module)
        known = ALL_OPTIONS if command is None else options_of(command)
        wrong = alone - known - {"--dag-id", "--from-date", "--to-date"}
        assert not wrong, (
            f"{module}:{line} names {wrong}, which {command or 'no command'} does not have: {text}"
        )


def _samples(function: Any) -> dict[str, Any]:
    values = {
        "key_hash": "3f" * 16, "dag_id": "a dag", "business_date": "2026-01-30", "operation": "post it",
        "space": ("statements", "post", "2026-01-30"), "document": "-S1", "namespace": "statements",
        "old": ("a", "b"), "new": ("c", "d"), "first": "2026-01-01", "last": "2026-01-31", "decision": "waive",
        "option": "--without-reversal", "documents": ["-S1", "S 2"],
    }  # fmt: skip
    names = [name for name, each in inspect.signature(function).parameters.items()
             if each.default is inspect.Parameter.empty]  # fmt: skip
    missing = [name for name in names if name not in values]
    assert not missing, f"{function.__name__}: this test needs a sample of {missing}"
    return {name: values[name] for name in names}


@pytest.mark.parametrize(
    "function",
    [each for name, each in vars(commands).items() if name.endswith("_command") and callable(each)],
    ids=lambda function: function.__name__,
)
def test_every_command_line_that_is_handed_over_is_understood(function: Any) -> None:
    line = function(**_samples(function))
    program, *arguments = shlex.split(line)
    if program == "airflow":
        from airflow.cli.cli_parser import get_parser

        get_parser().parse_args(arguments)
        return
    given, unknown = _parser().parse_known_args(arguments)
    assert not unknown
    assert given.command.name == arguments[0]
    if {"document", "documents"} & inspect.signature(function).parameters.keys():
        assert "-S1" in [*getattr(given, "documents", []), *getattr(given, "document", [])], vars(given)


@cache
def parameters() -> frozenset[str]:
    """Return the names of all parameters of what users call."""
    names: set[str] = set()
    public = [getattr(airflow_guard, name) for name in airflow_guard.__all__]
    public += [import_module("airflow_guard.testing").TestLedger]
    for each in public:
        for called in (each, getattr(each, "__init__", None), getattr(each, "partial", None)):
            try:
                names |= set(inspect.signature(called).parameters)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                continue
        names |= set(getattr(each, "__annotations__", {}))
    from airflow.sdk.bases.operator import BaseOperator

    return frozenset(names | set(inspect.signature(BaseOperator.__init__).parameters))


def test_every_parameter_in_a_text_exists() -> None:
    seen, wrong = set[str](), list[str]()
    for module, line, text in texts():
        if " " not in text.strip() or re.search(r"\b(SELECT|SET|CREATE|ALTER|UPDATE|INSERT)\b", text):
            continue
        if module.startswith("airflow_guard.pages"):
            continue  # addresses and HTML
        for found in _PARAMETER.finditer(text):
            seen.add(found["name"])
            if found["name"] not in parameters() | NOT_OURS:
                wrong.append(f"{module}:{line} names {found['name']}=: {text}")
    assert wrong == []
    assert len(seen) > 20


def test_every_setting_in_a_text_exists() -> None:
    options = get_provider_info()["config"]["airflow_guard"]["options"]
    found = {(module, name) for module, _, text in texts() for name in _SETTING.findall(text)}
    assert len(found) > 5
    assert {(module, name) for module, name in found if name not in options} == set()


def test_every_extra_in_a_text_exists() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {name for _, _, text in texts() for name in re.findall(r"airflow-guard\[([a-z,]+)\]", text)}
    assert found
    assert found <= project["optional-dependencies"].keys()
