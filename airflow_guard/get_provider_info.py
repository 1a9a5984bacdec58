"""What Airflow is told about this package, through the entry point ``apache_airflow_provider``.

Airflow reads this in every one of its processes, so nothing is imported here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]


def get_provider_info() -> dict[str, Any]:
    """Return the provider description, in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-guard",
        "name": "Airflow Guard",
        "description": "Scheduled jobs that post, pay or notify once, however often they run.",
        "task-decorators": [
            {"name": "idempotent", "class-name": "airflow_guard.decorators.idempotent.idempotent_task"},
        ],
        "operators": [
            {
                "integration-name": "Airflow Guard",
                "python-modules": [
                    "airflow_guard.operators.idempotent",
                    "airflow_guard.operators.duplicate_check",
                    "airflow_guard.notifications.watch",
                ],
            },
        ],
        "sensors": [
            {"integration-name": "Airflow Guard", "python-modules": ["airflow_guard.sensors.reconciliation"]},
        ],
        "triggers": [
            {"integration-name": "Airflow Guard", "python-modules": ["airflow_guard.triggers.ledger"]},
        ],
        "extra-links": ["airflow_guard.operators.endings.GuardLink"],
        "notifications": ["airflow_guard.notifications.guard.GuardNotifier"],
        # Honoured from Airflow 3.2 on; on 3.1 the console script `airflow-guard` offers the same commands.
        "cli": ["airflow_guard.commands.airflow_commands.get_cli_commands"],
        "config": {
            "airflow_guard": {
                "description": "The ledger of IdempotentOperator, @task.idempotent and ReconciliationSensor.",
                "options": _options(),
            },
        },
    }


def _options() -> dict[str, dict[str, Any]]:
    return {
        "ledger_conn_id": _option(
            "Connection (postgres, mysql or sqlite) of the database that holds the ledger. An operator's own "
            "``ledger_conn_id`` comes first. With neither, the DAG does not import.",
            example="core_banking",
        ),
        "ledger_conn_ids": _option(
            "Connections of the ledgers that the pages in Airflow's UI show, separated by commas: where operators "
            "name several. Empty: the one of ``ledger_conn_id``.",
            example="core_banking, cards",
        ),
        "schema": _option(
            "Database schema of the ledger's tables (PostgreSQL). Empty: the connection's default schema.",
            example="guard",
        ),
        "table_prefix": _option("What the names of the ledger's tables begin with.", default="guard_"),
        "deployment": _option(
            "Name of this Airflow deployment, stored with every row. A row of another deployment is never "
            "replayed: the task fails instead, so that a test system cannot cancel production.",
            default="default",
            example="production",
        ),
        "mode": _option(
            "``enforce``, or ``observe``: always call the callable, record, and log what would have been "
            "blocked. DAGs and tasks can choose their own.",
            default="enforce",
        ),
        "lease_seconds": _option(
            "How long other attempts leave a key alone after the last sign of life of the one that works on "
            "it. Renewed at a third of it, by the database's clock. An operator's own ``lease`` comes first.",
            default="60",
            type_="float",
        ),
        "page_timeout_seconds": _option(
            "How long a page in Airflow's UI waits for a ledger before it says that the ledger does not answer. With "
            "the default a page is there within two seconds, whatever has become of the database.",
            default="1.6",
            type_="float",
        ),
        "result_max_bytes": _option(
            "Size limit of a stored result, as JSON. A result is a receipt (an id, a count), not the data.",
            default="32768",
            type_="integer",
        ),
    }


def _option(
    description: str, *, default: str | None = None, example: str | None = None, type_: str = "string"
) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": type_,
        "example": example,
        "default": default,
    }
