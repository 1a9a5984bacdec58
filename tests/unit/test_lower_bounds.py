"""The lower bounds that pyproject.toml states are the versions that `make test-lowest` installs."""

from __future__ import annotations

import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def test_every_lower_bound_is_what_the_lowest_environment_pins() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    stated = {requirement.replace(">=", "==") for requirement in project["dependencies"]}
    pinned = {
        line for line in (_ROOT / "constraints/airflow-3.1.in").read_text().splitlines() if line[:1] != "#"
    }
    resolved = set((_ROOT / "constraints/airflow-3.1.txt").read_text().splitlines())
    assert stated == pinned
    assert {requirement.replace("[binary]", "") for requirement in pinned} <= resolved
