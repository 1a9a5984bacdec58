"""``import airflow_guard`` imports nothing that costs, and offers every name to people and to type
checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_guard

HEAVY = ("airflow", "sqlalchemy", "alembic", "psycopg", "pendulum", "jinja2")


def imported_by(statement: str) -> list[str]:
    """Return which heavy packages a fresh interpreter has after a statement."""
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return list(ast.literal_eval(done.stdout.strip()))


@pytest.mark.parametrize(
    "statement",
    [
        "import airflow_guard",
        "import airflow_guard; dir(airflow_guard); airflow_guard.__version__",
        "from airflow_guard import Database, External, NotExecuted, Rejected",
        "from airflow_guard import business_day, from_asset_extra, month_end, previous_day, same_day",
        "from airflow_guard.get_provider_info import get_provider_info; get_provider_info()",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    assert imported_by(statement) == []


def test_type_checkers_see_the_names_that_are_there() -> None:
    tree = ast.parse(Path(airflow_guard.__file__).read_text())
    seen = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # the form that re-exports
    }
    offered = {(module, name) for module, names in airflow_guard._NAMES.items() for name in names}
    assert seen == offered
    assert set(airflow_guard.__all__) == {"__version__", *(name for _, name in offered)}
    assert set(airflow_guard.__all__) <= set(dir(airflow_guard))


def test_every_error_is_offered() -> None:
    from airflow_guard.core import errors

    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.GuardError) and value is not errors.Signal
    }
    assert classes <= set(airflow_guard.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Guard'"):
        airflow_guard.Guard  # noqa: B018 - the access is the test
