"""Command lines of the pages, and a small shell that runs those of the tutorial in this process."""

from __future__ import annotations

import contextlib
import io
import logging
import shlex
from datetime import UTC, datetime
from runpy import run_path
from typing import TYPE_CHECKING

from airflow_guard.commands.main import main as airflow_guard
from tests.airflow_environment import run_dag_test
from tests.docs.parsing import noted_dags

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


_SETTINGS = {"AIRFLOW_HOME", "AIRFLOW__CORE__LOAD_EXAMPLES", "AIRFLOW__CORE__DAGS_FOLDER"}


def commands_of(text: str) -> list[list[str]]:
    """Return the commands in a block of shell text, each as its words."""
    joined = text.replace("\\\n", " ")
    commands = []
    for line in joined.splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0] and not words[0].startswith("-"):
            words = words[1:]  # variables of one command
        if words:
            commands.append(words)
    return commands


class Shell:
    """Runs the commands of the tutorial in one folder, in this process, and collects what they print and log.

    :param folder: the reader's folder.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        monkeypatch.chdir(folder)

    def write(self, text: str) -> None:
        """Save a Python snippet under the name in its first line."""
        name = text.splitlines()[0].removeprefix("# ")
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, text: str) -> str:
        """Run a block of commands and return what they print, and what the ledger logs."""
        output = io.StringIO()
        handler = logging.StreamHandler(output)
        logger = logging.getLogger("airflow_guard.execution.run")
        logger.addHandler(handler)
        before = logger.level
        logger.setLevel(logging.INFO)
        try:
            for line in text.replace("\\\n", " ").splitlines():
                with contextlib.redirect_stdout(output):
                    self._command(line.replace("$PWD", str(self.folder)))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
        return output.getvalue()

    def _command(self, line: str) -> None:
        words = shlex.split(line)
        match words:
            case ["export", assignment]:
                self._export(*assignment.split("=", 1))
            case ["airflow", "dags", "test", dag_id, day]:
                self._test(dag_id, day)
            case ["airflow-guard", *arguments]:
                assert airflow_guard(arguments) == 0, line
            case ["python", name]:
                run_path(name)
            case ["rm", name]:
                for path in self.folder.glob(f"{name}*"):
                    path.unlink()
            case ["mkdir", name]:
                (self.folder / name).mkdir()
            case ["pip", *_] | ["airflow", "db", "migrate"] | ["airflow", "standalone"]:
                pass  # the test session has done it, or somebody would have to click
            case _:
                msg = f"not known to this shell: {line}"
                raise AssertionError(msg)

    def _export(self, name: str, value: str) -> None:
        if name.startswith("AIRFLOW_CONN_"):
            self._patch.setenv(name, value)
        else:
            # Airflow reads its settings once; the test session has its own.
            assert name in _SETTINGS, name

    def _test(self, dag_id: str, day: str) -> None:
        with noted_dags() as made:
            run_path(str(self.folder / "dags" / f"{dag_id}.py"))
        run_dag_test(made[dag_id], logical_date=datetime.fromisoformat(day).replace(tzinfo=UTC))
