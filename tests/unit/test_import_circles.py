"""No files import each other in a circle, also not by an import inside a function or for the type checker."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_guard
import demo

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOTS = (Path(airflow_guard.__file__).parent, Path(demo.__file__ or "").parent)
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Return every module of the package, and of the demo, with its file."""
    found = {}
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, known: Mapping[str, object]) -> set[str]:
    """Return the modules of the package that a file imports."""
    names: set[str] = set()
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            # A name of a package may be a module of it, or something that it defines.
            inside = {f"{statement.module}.{alias.name}" for alias in statement.names}
            names |= (inside & known.keys()) or {statement.module}
    return names & known.keys()


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules of which each leads to each (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1 or module in graph[module]:
                found.append(sorted(group))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {name: imported(path.read_text("utf-8"), known) - {name} for name, path in known.items()}
    assert len(graph) > 100
    assert circles(graph) == []


def test_late_imports_count_and_those_for_the_type_checker() -> None:
    known = {"airflow_guard": 0, "airflow_guard.a": 0, "airflow_guard.b": 0, "airflow_guard.c": 0}
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from airflow_guard import a\n"
        "def late():\n    from airflow_guard.b import x\n    from airflow_guard import c\n"
    )
    assert imported(source, known) == {"airflow_guard.a", "airflow_guard.b", "airflow_guard.c"}


def test_a_circle_is_found_however_long() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set[str]()}
    assert circles(graph) == [["a", "b", "c"]]
