"""Runs of a DAG, task by task, in this process: as ``dag.test()`` runs them, but of any run type, one try at
a time, and with the error of every task at hand."""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from demo.waiting import QUIET_S
from tests.airflow_environment import enter_dag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow.models.dagrun import DagRun as DagRunModel
    from airflow.sdk import DAG

_numbers = itertools.count(1)


@dataclass
class Ended:
    """How a try of a task ended."""

    task_id: str
    map_index: int
    state: str
    error: BaseException | None = None

    @property
    def cause(self) -> BaseException | None:
        """The error of this package behind Airflow's."""
        return self.error.__cause__ if self.error else None


@dataclass
class AirflowRun:
    """A run of a DAG. Made by :func:`start_run`."""

    dag: DAG
    run_id: str
    ended: list[Ended] = field(default_factory=list)

    def go(self, dag: DAG | None = None, *, run_triggers: bool = True) -> AirflowRun:
        """Run all tasks that can run, each for one try at most.

        :param dag: the DAG as its file has it now; tasks are taken from it.
        :param run_triggers: whether a deferred task waits for its trigger here; otherwise it stays deferred.
        """
        if dag is not None:
            self.dag = dag
            enter_dag(dag)
        tried: set[tuple[str, int, int]] = set()
        with _handlers_kept(), _session() as session:
            while True:
                run = self._model(session)
                run.dag = _as_scheduler_sees(self.dag)
                ready, _ = run.update_state(session=session, execute_callbacks=False)
                new = [ti for ti in ready if (ti.task_id, ti.map_index, ti.try_number) not in tried]
                if not new:
                    return self
                for ti in new:
                    # As the scheduler does: a task that was rescheduled goes on with the same try.
                    ti.try_number += ti.state != "up_for_reschedule"
                    ti.state = "scheduled"
                    tried.add((ti.task_id, ti.map_index, ti.try_number))
                session.commit()
                for ti in new:
                    self.ended.append(_run(ti, self.dag, run_triggers=run_triggers))
                session.expire_all()

    def go_on(self, *, at_most_s: float = QUIET_S) -> AirflowRun:
        """Run until no task waits to be rescheduled any more.

        :param at_most_s: then fail.
        """
        deadline = time.monotonic() + at_most_s
        self.go()
        while "up_for_reschedule" in self.states().values():
            assert time.monotonic() < deadline, f"rescheduled forever: {self.states()}"
            time.sleep(0.02)
            self.go()
        return self

    def question(self, task_id: str, map_index: int = -1) -> Any:
        """Return the question of a task to a person, as Airflow has it; ``None`` if it asks none."""
        from airflow.models.hitl import HITLDetail
        from sqlalchemy import select

        with _session() as session:
            ti = self._ti(session, task_id, map_index)
            return session.scalars(select(HITLDetail).where(HITLDetail.ti_id == ti.id)).one_or_none()

    def answer(
        self,
        task_id: str,
        option: str | None,
        inputs: Mapping[str, Any] | None = None,
        *,
        user: str = "jane",
        map_index: int = -1,
    ) -> AirflowRun:
        """Answer the question of a task as the API server, or the trigger, does, and let the task go on.

        :param option: the button; ``None``: nobody answers in time.
        :param inputs: the fields of the form.
        """
        give_answer(self.dag.dag_id, self.run_id, task_id, option, inputs, user=user, map_index=map_index)
        with _handlers_kept(), _session() as session:
            ti = self._ti(session, task_id, map_index)
            self.ended.append(_run(ti, self.dag, run_triggers=False))
            session.expire_all()
        return self.go(run_triggers=False)

    def _ti(self, session: Any, task_id: str, map_index: int) -> Any:
        tis = self._model(session).get_task_instances(session=session)
        (ti,) = [ti for ti in tis if (ti.task_id, ti.map_index) == (task_id, map_index)]
        return ti

    def clear(self, *task_ids: str) -> AirflowRun:
        """Clear tasks, or the whole run, as a person does in the UI. :meth:`go` runs them again."""
        from airflow.models.taskinstance import clear_task_instances

        with _session() as session:
            run = self._model(session)
            tis = [
                ti for ti in run.get_task_instances(session=session) if not task_ids or ti.task_id in task_ids
            ]
            clear_task_instances(tis, session=session)
            session.flush()
            self._model(session).state = "running"
        self.ended.clear()
        return self

    def rewrite_run_type(self, run_type: str) -> AirflowRun:
        """Do to the run what a backfill with reprocess behaviour ``completed`` does to its type."""
        from airflow.utils.types import DagRunType

        with _session() as session:
            self._model(session).run_type = DagRunType(run_type)
        return self

    def states(self) -> dict[str, str]:
        """Return the states of the tasks now, mapped ones as ``task[0]``."""
        with _session() as session:
            tis = self._model(session).get_task_instances(session=session)
            return {_name(ti.task_id, ti.map_index): str(ti.state) for ti in tis}

    def result(self, task_id: str, map_index: int = -1) -> Any:
        """Return what a task has returned (its XCom)."""
        from airflow.models.xcom import XComModel
        from sqlalchemy import select

        query = select(XComModel).where(
            XComModel.dag_id == self.dag.dag_id,
            XComModel.run_id == self.run_id,
            XComModel.task_id == task_id,
            XComModel.map_index == map_index,
            XComModel.key == "return_value",
        )
        with _session() as session:
            row = session.scalars(query).one_or_none()
            return None if row is None else XComModel.deserialize_value(row)

    def last(self, task_id: str, map_index: int = -1) -> Ended:
        """Return how the last try of a task ended."""
        return [each for each in self.ended if (each.task_id, each.map_index) == (task_id, map_index)][-1]

    def _model(self, session: Any) -> DagRunModel:
        from airflow.models.dagrun import DagRun
        from sqlalchemy import select

        query = select(DagRun).where(DagRun.dag_id == self.dag.dag_id, DagRun.run_id == self.run_id)
        run: DagRunModel = session.scalars(query).one()
        return run


def give_answer(
    dag_id: str,
    run_id: str,
    task_id: str,
    option: str | None,
    inputs: Mapping[str, Any] | None = None,
    *,
    user: str = "jane",
    map_index: int = -1,
) -> None:
    """Answer the question of a task as the API server, or the trigger, does. The task is not run."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import handle_event_submit
    from airflow.triggers.base import TriggerEvent
    from sqlalchemy import select

    which = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id)
    event: dict[str, Any] = {"error": "The timeout has passed.", "error_type": "timeout"}
    with _session() as session:
        ti = session.scalars(select(TaskInstance).where(*which, TaskInstance.map_index == map_index)).one()
        assert str(ti.state) in ("awaiting_input", "deferred"), ti.state
        if option is not None:
            detail = session.scalars(select(HITLDetail).where(HITLDetail.ti_id == ti.id)).one()
            assert option in detail.options
            detail.responded_at, detail.responded_by = datetime.now(UTC), {"id": user, "name": user}
            detail.chosen_options, detail.params_input = [option], dict(inputs or {})
            event = {
                "chosen_options": [option],
                "params_input": dict(inputs or {}),
                "responded_by_user": {"id": user, "name": user},
                "responded_at": detail.responded_at,
                "timedout": False,
            }
        handle_event_submit(TriggerEvent(event), task_instance=ti, session=session)


def start_run(
    dag: DAG,
    *,
    run_type: str = "scheduled",
    logical_at: datetime | None = None,
    interval: tuple[datetime, datetime] | None = None,
    due_at: datetime | None = None,
    conf: Mapping[str, Any] | None = None,
    asset_extras: Sequence[Mapping[str, Any]] = (),
    emitted_by: str | None = None,
    run_id: str | None = None,
    **more: Any,
) -> AirflowRun:
    """Enter a DAG and a run of it in the metadata database, without running anything yet.

    :param run_type: Airflow's word.
    :param logical_at: the logical date; none in asset-triggered runs.
    :param interval: the data interval, by default empty, as a cron string gives it.
    :param due_at: ``run_after``; by default the logical date.
    :param asset_extras: the ``extra`` of the asset events that triggered the run.
    :param emitted_by: the run of a producer that emitted all of them; each event is of an asset of its number.
    :param more: what only some versions of Airflow take, such as ``partition_key``.
    """
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    _keep_api_server()
    enter_dag(dag)
    number = next(_numbers)
    run_id = run_id or f"{run_type}__{(logical_at or datetime.now(UTC)).isoformat()}_{number}"
    with _session() as session:
        run = _as_scheduler_sees(dag).create_dagrun(
            run_id=run_id,
            logical_date=logical_at,
            data_interval=interval or ((logical_at, logical_at) if logical_at else None),
            run_after=due_at or logical_at or datetime.now(UTC),
            conf=dict(conf) if conf is not None else None,
            run_type=DagRunType(run_type),
            triggered_by=DagRunTriggeredByType.TEST,
            state="running",
            session=session,
            **more,
        )
        if asset_extras:
            run.consumed_asset_events = [
                _asset_event(
                    session, extra, f"asset_of_{emitted_by}_{at}" if emitted_by else None, emitted_by
                )
                for at, extra in enumerate(asset_extras)
            ]
    return AirflowRun(dag, run_id)


@functools.cache
def _keep_api_server() -> None:
    """Let all tasks of this process share the API server that lies in it, as Airflow 3.2 and newer do; 3.1
    makes one for each task, which takes seconds and leaves a thread."""
    from airflow.sdk.execution_time import supervisor

    if not hasattr(supervisor.in_process_api_server, "cache_info"):
        supervisor.in_process_api_server = functools.cache(supervisor.in_process_api_server)


def _asset_event(
    session: Any, extra: Mapping[str, Any], name: str | None = None, source_run_id: str | None = None
) -> Any:
    from airflow.models.asset import AssetEvent, AssetModel
    from sqlalchemy import select

    name = name or f"asset_{next(_numbers)}"
    asset = session.scalar(select(AssetModel).where(AssetModel.name == name))
    if asset is None:
        asset = AssetModel(name=name, uri=f"x://asset/{name}", group="asset")
        session.add(asset)
        session.flush()
    source: dict[str, Any] = {}
    if source_run_id is not None:
        source = {"source_dag_id": "producer", "source_task_id": "deliver", "source_map_index": -1}
    event = AssetEvent(asset_id=asset.id, extra=dict(extra), source_run_id=source_run_id, **source)
    session.add(event)
    return event


def _run(ti: Any, dag: DAG, *, run_triggers: bool = True) -> Ended:
    from airflow.sdk.definitions.dag import _run_task

    ended = _run_task(ti=ti, task=dag.task_dict[ti.task_id], run_triggerer=run_triggers)
    if ended is None:
        return Ended(
            ti.task_id, ti.map_index, str(ti.state), RuntimeError("Airflow could not run it, see the log")
        )
    state = getattr(ended.state, "value", ended.state)
    return Ended(ti.task_id, ti.map_index, str(state), ended.error)


def _as_scheduler_sees(dag: DAG) -> Any:
    from airflow.serialization import serialized_objects

    serialization = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
    return serialization.deserialize_dag(serialization.serialize_dag(dag))


def _name(task_id: str, map_index: int) -> str:
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    from airflow.utils.session import create_session

    with create_session() as session:
        session.expire_on_commit = False
        yield session


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    # Running a task in this process leaves a handler behind.
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
