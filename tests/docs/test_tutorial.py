"""The tutorial as a reader does it: every file is written, every command run, and what it says comes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import page
from tests.docs.shell import Shell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_tutorial_gives_what_it_says(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, output = Shell(tmp_path, monkeypatch), ""
    for fence in page("docs/tutorial.md").fences:
        if fence.language == "python":
            shell.write(fence.text)
        elif fence.language == "bash":
            output = shell.run(fence.text)
        else:
            assert fence.language == "text", fence
            for line in fence.text.splitlines():
                assert occurs(line, output), f"{fence}: {line!r} is not in:\n{output}"


def occurs(line: str, output: str) -> bool:
    """Return whether a line of the page is in an output; ``…`` stands for anything, a space for several, and lines of a
    table are as long as its columns."""
    line, output = (re.sub(r"=+", "=", text) for text in (line, output))
    pattern = r"\s+".join(map(re.escape, line.split())).replace("…", ".*")
    return re.search(pattern, output) is not None
