"""An Airflow of the test session's own: its folder, its settings, its metadata database."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

# A key of the right form that protects nothing: the metadata database is thrown away.
_FERNET_KEY = "Z3VhcmQtdGVzdC1mZXJuZXQta2V5LTAwMDAwMDAwMDA="


def prepare() -> Path:
    """Point this process and its children at a fresh ``AIRFLOW_HOME``; return that folder.

    Settings of the developer's own Airflow are removed from the environment first. The folder goes when
    the process ends.

    :raises RuntimeError: Airflow has been imported already and has read other settings.
    """
    if "airflow" in sys.modules:
        msg = "airflow was imported before its test settings were made; import it in tests only"
        raise RuntimeError(msg)
    for name in list(os.environ):
        if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW")):
            del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="guard-airflow-"))
    _remove_at_exit(home)
    for folder in ("dags", "plugins", "logs"):
        (home / folder).mkdir()
    os.environ.update(settings(home))
    return home


def settings(home: Path) -> dict[str, str]:
    """Return the environment of an Airflow that keeps everything in one folder, on SQLite."""
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        # A DAG that a test has changed is another one at once.
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
        "AIRFLOW__CORE__FERNET_KEY": _FERNET_KEY,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "guard-test-secret-of-a-thrown-away-server",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # Some systems (macOS) look up a proxy for every connection, which is not safe in forked processes.
        "NO_PROXY": "*",
    }


def migrate() -> None:
    """Create the metadata database of this session."""
    from airflow.utils.db import initdb

    initdb()


def run_dag_test(dag: DAG, **arguments: Any) -> DagRun:
    """Run a DAG with ``dag.test()`` and return its run, whatever state that ended in.

    The DAG is first entered in the metadata database, since it lies in no DAG folder.

    :param arguments: as for ``dag.test``: ``logical_date``, ``run_after``, ``run_conf`` and so on.
    """
    enter_dag(dag)
    # `dag.test()` leaves its own handler behind.
    before = signal.getsignal(signal.SIGTERM)
    try:
        run: DagRun = dag.test(**arguments)
    finally:
        signal.signal(signal.SIGTERM, before)
    return run


def enter_dag(dag: DAG) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    try:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(dag_folder=os.devnull, bundle_path=None)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)


def _remove_at_exit(folder: Path) -> None:
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child runs this too
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
