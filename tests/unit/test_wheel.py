"""The wheel holds what a user imports, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hatchling.builders.wheel import WheelBuilder

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_ROOT = Path(__file__).resolve().parents[2]
_IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import airflow_guard
assert pathlib.Path(airflow_guard.__file__).is_relative_to(sys.argv[1]), airflow_guard.__file__
names = [each.name for each in pkgutil.walk_packages(airflow_guard.__path__, "airflow_guard.")]
for name in names:
    if not name.endswith("migrations.env"):  # Alembic runs it, within a migration
        importlib.import_module(name)
beside = {"demo", "chaos", "benchmarks", "tests", "dags_examples"} & {name.partition(".")[0] for name in sys.modules}
assert len(names) > 100, names
assert not beside, beside
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this project, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(_ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def _files(folder: Path) -> AbstractSet[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_holds_the_package_and_nothing_beside_it(wheel: Path) -> None:
    (described,) = wheel.glob("*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"airflow_guard", described.name}
    assert _files(wheel / "airflow_guard") == _files(_ROOT / "airflow_guard")


def test_all_of_it_can_be_imported_where_the_rest_of_the_project_is_not(wheel: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _IMPORT_ALL, str(wheel)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
