"""The name of the machine, as the environment has it: a deployment on another machine, without another machine.

Schedulers and workers ask for it when they start. Their tasks are forks of them, so what is imported here need not be
imported again in each task: on a small machine that is most of a task's time.
"""

from __future__ import annotations

import importlib
import os
import sys

_WHAT_TASKS_NEED = (
    "airflow.sdk.execution_time.task_runner",
    "airflow.providers.postgres.hooks.postgres",
    "airflow_guard.hooks.ledger",
    "airflow_guard.notifications.guard",
    "airflow_guard.notifications.watch",
    "airflow_guard.operators.idempotent",
    "chaos.clock",
    "chaos.paper",
)

if {"scheduler", "celery"} & set(sys.argv):
    for module in _WHAT_TASKS_NEED:
        importlib.import_module(module)


def name() -> str:
    """Return what Airflow is to take for the host's name (``[core] hostname_callable``)."""
    return os.environ.get("CHAOS_HOST", "host-1")
