"""A type checker accepts every documented call, and refuses a misspelt word: mypy, strict, as a user has it."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from airflow_guard.operators.idempotent import IdempotentOperator
from tests.docs import assumed
from tests.docs.pages import ROOT, fences, page

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted({fence.page for fence in fences("python")})
EXAMPLES = sorted(path.name for path in (ROOT / "dags_examples").glob("*.py"))
TYPED = ROOT / "tests" / "docs" / "typing"
# Pages and examples are shorter without annotations of the reader's own functions, and a page says a name twice.
_UNANNOTATED = '# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-redef"\n'
_TYPED_FUNCTIONS = ("statements_of", "post_statement")
_LINE = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<what>.*)$")

Found = dict[str, list[tuple[int, str]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What mypy finds in each file, from one run over all of them."""
    folder = tmp_path_factory.mktemp("typing")
    names = assumed.names(folder)
    given = [f"{name}: Any" for name in names if name not in (*_TYPED_FUNCTIONS, "__name__")]
    before = [
        _UNANNOTATED + "from typing import Any",
        f"from tests.docs.assumed import {', '.join(_TYPED_FUNCTIONS)}",
        *given,
    ]
    for name in PAGES:
        blocks = [f.text for f in page(name).fences if f.language == "python" and "refused" not in f.words]
        (folder / file_of(name)).write_text("\n".join([*before, *blocks]), encoding="utf-8")
    for name in EXAMPLES:
        text = (ROOT / "dags_examples" / name).read_text(encoding="utf-8")
        (folder / f"example_{name}").write_text(_UNANNOTATED + text, encoding="utf-8")
    for each in ("usage.py", "misspelt.py"):
        shutil.copy(TYPED / each, folder)
    return errors_in(folder)


def errors_in(folder: Path) -> Found:
    """Run mypy once, with nothing but ``--strict``."""
    (folder / "mypy.ini").write_text("[mypy]\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        "mypy.ini",
        "--no-error-summary",
        ".",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    errors: Found = defaultdict(list)
    for line in done.stdout.splitlines():
        match = _LINE.match(line)
        if match:
            errors[match["file"]].append((int(match["line"]), match["what"]))
    return errors


def file_of(page_name: str) -> str:
    return re.sub(r"\W", "_", page_name.removesuffix(".md")) + ".py"


@pytest.mark.parametrize("name", PAGES)
def test_the_snippets_of_a_page_are_accepted(found: Found, name: str) -> None:
    assert found.get(file_of(name), []) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_dags_are_accepted(found: Found, name: str) -> None:
    assert found.get(f"example_{name}", []) == []


def test_the_dags_of_the_design_are_accepted(found: Found) -> None:
    assert found.get("usage.py", []) == []


def test_nothing_of_the_package_is_refused(found: Found) -> None:
    """Checked by the settings of a user, who has no more than ``--strict``."""
    assert [each for name, each in found.items() if "airflow_guard" in name] == []


def test_a_misspelt_word_is_refused_and_nothing_else_is(found: Found) -> None:
    lines = (TYPED / "misspelt.py").read_text(encoding="utf-8").splitlines()
    wanted = [number for number, line in enumerate(lines, start=1) if line.endswith("# refused")]
    assert sorted({number for number, _ in found["misspelt.py"]}) == wanted
    said = {what for number, what in found["misspelt.py"] if "databse" in lines[number - 1]}
    assert said
    assert all('"side_effect"' in what for what in said), "the message names the parameter"


def test_the_decorator_takes_what_the_operator_takes() -> None:
    """Type checkers see two lists of parameters; they say the same."""
    text = (ROOT / "airflow_guard" / "decorators" / "typed.py").read_text(encoding="utf-8")
    block = text.partition("def _parameters(")[2].partition("**kwargs")[0]
    listed = dict(re.findall(r"^        (\w+): (.+) = .+,$", block, re.MULTILINE))
    del listed["python_callable"]
    signature = inspect.signature(IdempotentOperator.__init__)
    own = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if name not in ("self", "python_callable", "kwargs")
    }
    assert listed == own


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "airflow_guard" / "py.typed").is_file()
