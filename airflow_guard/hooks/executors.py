"""Whether a ledger in a file is safe: only where all tasks run on one machine."""

from __future__ import annotations

import os

from airflow_guard.airflow_compat import conf, runs_in_this_process
from airflow_guard.core.errors import ConfigurationError

_ON_ONE_MACHINE = frozenset({"LocalExecutor", "SequentialExecutor"})
_KUBERNETES_POD = "AIRFLOW_IS_K8S_EXECUTOR_POD"


def refuse_file_elsewhere(conn_id: str, executor: str | None = None) -> None:
    """Refuse a SQLite ledger for tasks that may run on several machines: each would have a file of its own.

    ``dag.test()`` runs everything in one process, whatever the configuration says.

    :param conn_id: for the message.
    :param executor: the task's own ``executor=``; ``None``: the default of the deployment, or of any team.
    :raises ConfigurationError: a retry does not help.
    """
    if runs_in_this_process():
        return
    if os.environ.get(_KUBERNETES_POD):
        # In a pod the configuration says LocalExecutor, as the pod itself runs its one task that way.
        _refuse(conn_id, "the KubernetesExecutor")
    for name in executors_of_task(conf.get("core", "executor", fallback="LocalExecutor") or "", executor):
        if _class_name(name) not in _ON_ONE_MACHINE:
            _refuse(conn_id, name)


def executors_of_task(configured: str, own: str | None) -> list[str]:
    """Return the executors that a task may run on, as ``[core] executor`` writes them.

    >>> executors_of_task("LocalExecutor,CeleryExecutor", None)
    ['LocalExecutor']
    >>> executors_of_task("LocalExecutor,fast:acme.FastExecutor", "fast")
    ['acme.FastExecutor']
    >>> executors_of_task("LocalExecutor;payments=CeleryExecutor", None)
    ['LocalExecutor', 'CeleryExecutor']

    :param configured: the option: a comma list, the first being the default; teams are separated by ``;`` and
        written ``team=list``. An alias is written ``alias:executor``.
    :param own: the task's own ``executor=``: an alias, a class name or a module path.
    """
    teams = [team.rpartition("=")[2].split(",") for team in configured.split(";") if team.strip()]
    if own is None:
        return [names[0].strip().rpartition(":")[2] for names in teams]
    for name in (each.strip() for names in teams for each in names):
        alias, _, executor = name.rpartition(":")
        if own in (alias, executor, _class_name(executor)):
            return [executor]
    return [own]


def _class_name(name: str) -> str:
    return name.rpartition(".")[2]


def _refuse(conn_id: str, executor: str) -> None:
    raise ConfigurationError(
        f"The ledger {conn_id!r} is a SQLite file, and this task runs on {executor}, which may use several "
        "machines: each would keep a ledger of its own and execute what the others have done. Point "
        "ledger_conn_id, or [airflow_guard] ledger_conn_id, to PostgreSQL, MySQL or MariaDB. SQLite is for "
        "LocalExecutor and dag.test()."
    )
