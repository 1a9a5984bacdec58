"""What the page says of ``dag.test()``: it takes a file in the DAGs folder, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import page

if TYPE_CHECKING:
    from pathlib import Path


def run_file(folder: Path, dags_folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the file of the page as its reader does."""
    connection = {"conn_type": "sqlite", "host": f"{folder.parent}/bank.db"}
    environment = {
        **os.environ,
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW_CONN_CORE_BANKING": json.dumps(connection),
    }
    return subprocess.run(
        [sys.executable, str(folder / "tried_out.py")], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_dag_is_tried_out_from_the_dags_folder_only(airflow_home: Path, tmp_path: Path) -> None:
    drafts, elsewhere = tmp_path / "drafts", tmp_path / "dags"
    drafts.mkdir()
    elsewhere.mkdir()
    (fence,) = [each for each in page("docs/how-to/test-your-callable.md").fences if "dag.test(" in each.text]
    (drafts / "tried_out.py").write_text(fence.text, encoding="utf-8")

    refused = run_file(drafts, elsewhere)
    assert refused.returncode != 0
    assert "the dag is not serialized" in refused.stderr + refused.stdout
    first = run_file(drafts, drafts)
    assert first.returncode == 0, first.stderr
    assert "post_statement: executed 2: S-1, S-2" in first.stdout + first.stderr
