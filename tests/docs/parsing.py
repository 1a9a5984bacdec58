"""What Airflow does with a DAG file, for text that lies in no DAG folder."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import DAG


@contextmanager
def noted_dags() -> Iterator[dict[str, DAG]]:
    """Note the DAGs that are made with ``with DAG(…)`` or ``@dag`` in the block, by id."""
    from airflow.sdk import DAG

    made: dict[str, DAG] = {}
    enter = DAG.__enter__

    def noted(dag: DAG) -> Any:
        made[dag.dag_id] = dag
        return enter(dag)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DAG, "__enter__", noted)
        yield made


def serialise(dag: DAG) -> None:
    """Write a DAG as Airflow stores it, and read it again."""
    from airflow.serialization import serialized_objects

    serialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
    serialization.deserialize_dag(serialization.serialize_dag(dag))
