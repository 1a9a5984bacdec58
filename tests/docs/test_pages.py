"""Links lead somewhere, examples in docstrings run, and no file tells of the machine it was written on."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

import airflow_guard
from tests.docs.pages import ROOT, all_pages, page

if TYPE_CHECKING:
    from pathlib import Path

# Written in pieces: this file is read too.
_TRACES = {
    "a folder of somebody's machine": re.compile("/(?:home|Users|work|opt" + r"|root)/\w"),
    "a temporary folder": re.compile("/" + r"tmp/\w"),
    "a registry": re.compile(
        "index" + r"-url|regis" + r"try\.\w|/simp" + r"le/|py" + r"pi\.\w+|artifac" + "tory"
    ),
}


def modules() -> list[str]:
    """Return all modules of the package."""
    found = [each.name for each in pkgutil.walk_packages(airflow_guard.__path__, "airflow_guard.")]
    # Alembic runs the migrations, and a main module runs when it is imported.
    return [name for name in found if ".migrations." not in name and not name.endswith("__main__")]


@pytest.mark.parametrize("name", all_pages())
def test_every_link_leads_somewhere(name: str) -> None:
    for target in page(name).links:
        if "://" in target:
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        there = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert there.exists(), f"{name}: {target} does not exist"
        if anchor:
            headings = page(there.relative_to(ROOT).as_posix()).anchors
            assert anchor in headings, f"{name}: {target} has no such heading"


def test_every_page_is_reached_from_the_first_one() -> None:
    reached, new = set(), {"README.md"}
    while new:
        reached |= new
        new = {
            ((ROOT / name).parent / target.partition("#")[0]).resolve().relative_to(ROOT).as_posix()
            for name in new
            for target in page(name).links
            if target.partition("#")[0].endswith(".md") and "://" not in target
        } - reached
    assert set(all_pages()) <= reached


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name: str, airflow_home: Path) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(verbose=False)
    wrong: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=wrong.append)
    assert not wrong, "".join(wrong)


def files_of_the_project() -> list[str]:
    """Return the files that are, or would be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of the repository")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_file_tells_of_the_machine_that_it_was_written_on() -> None:
    found = []
    for name in files_of_the_project():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            traces = [what for what, trace in _TRACES.items() if trace.search(line)]
            found += [f"{name}:{number}: {what}: {line.strip()[:100]}" for what in traces]
    assert not found, "\n".join(found)
