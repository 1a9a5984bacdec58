"""One try of a guarded task: from Airflow's context to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from airflow_guard.airflow_compat import (
    AirflowSkipException,
    hostname,
    let_threads_talk,
    triggers_may_ask_on_threads,
)
from airflow_guard.airflow_pushes import TaskRecorder, call_as_airflow, outlet_events_of
from airflow_guard.core.date_checks import date_of_then
from airflow_guard.core.dates import NoBusinessDate, ResolvedDate, resolve_business_date
from airflow_guard.core.effects import External
from airflow_guard.core.errors import (
    ConfigurationError,
    DateChangedError,
    DocumentError,
    LedgerUnavailable,
)
from airflow_guard.core.expectations import expected_now
from airflow_guard.core.keys import KeyShape, KeySpace, cycle_text
from airflow_guard.core.run_facts import cycle_of_run, zone_name
from airflow_guard.execution.preflight import check_date
from airflow_guard.execution.run import GuardedTask
from airflow_guard.hooks.connections import asks_airflow
from airflow_guard.hooks.ledger import find_connection, ledger_conn_id, open_ledger
from airflow_guard.operators.business_date import written_date
from airflow_guard.operators.calling import (
    GIVEN_TO_ALL,
    Function,
    given_to_callable,
    given_to_on_rerun,
    given_to_verify,
)
from airflow_guard.operators.declaration import without_document
from airflow_guard.operators.endings import count, extras_of_assets
from airflow_guard.operators.run_context import identity_of, map_length_of, others_to_come, run_facts
from airflow_guard.store.task_runs import TaskTry

if TYPE_CHECKING:
    from datetime import date
    from types import TracebackType

    from airflow.sdk import Context

    from airflow_guard.core.expectations import Expected
    from airflow_guard.core.report import Report
    from airflow_guard.execution.attempt import Listing
    from airflow_guard.execution.spec import Callee, GuardSpec
    from airflow_guard.operators.mapping import GuardedOperator


_MORE_CONNECTIONS = 7
"""Beside one for each worker: for the writer, the lease, and the thread that judges and claims."""


class GuardedTry:
    """A try of a guarded task, from the moment that Airflow calls ``execute``. Use as a context manager.

    What needs no ledger is found out when it is made: a task that cannot work leaves no trace there.

    :param task: with its templates rendered.
    :param context: Airflow's.
    :raises GuardError: nothing was started; also on entering.
    :raises AirflowSkipException: on entering: the business date's rule says that there is nothing to do.
    """

    def __init__(self, task: GuardedOperator, context: Context) -> None:
        self._task = task
        self._context = context
        self.spec: GuardSpec = task.guard_spec
        self.identity = identity_of(context, hostname())
        self._one = self._one_document()
        self._facts = run_facts(context)
        self._resolved = resolve_business_date(self._facts, task.business_date)
        self.conn_id = ledger_conn_id(task.ledger_conn_id)
        self._recorder = TaskRecorder(context)
        self._guarded: GuardedTask | None = None
        self._stopped = ""

    def __enter__(self) -> Self:
        """Open the ledger, and compare the business date with what it knows."""
        let_threads_talk()
        self.ledger = open_ledger(
            self.conn_id,
            max_connections=self.spec.max_workers + _MORE_CONNECTIONS,
            executor=self._task.executor,
            even_if_down=self.spec.mode == "observe",
        )
        try:
            self._check_date()
            self._date = self._date_or_skip()
            self.space = self._key_space(self._date.date)
        except BaseException:
            self.ledger.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()

    @property
    def business_date(self) -> date:
        """The business date of this try."""
        return self.space.business_date

    @property
    def what(self) -> str:
        """How messages call the work."""
        cycle = f", cycle {self.space.cycle}" if self.space.cycle else ""
        return f"{self.space.key_namespace} / {self.space.operation} of {self.business_date}{cycle}"

    @property
    def task_run_id(self) -> int | None:
        """The try's id in the ledger, once it is recorded there."""
        return self._guarded.task_run_id if self._guarded else None

    def run(self, resumed: int | None = None) -> Report:
        """Execute what the ledger allows, and return what became of it.

        :param resumed: the try's id in the ledger if it goes on after a wait.
        """
        shared = self._shared()
        self._guarded = GuardedTask(
            self.ledger,
            self.spec,
            self._task_try(),
            self._callee(shared),
            verify=self._verify(shared),
            on_rerun=self._on_rerun(shared),
            dag_task_ids=frozenset(self._task.dag.task_ids),
            resumed=resumed,
            recorder=self._recorder,
            expectation=lambda: self._expected(shared),
            others_to_come=lambda: others_to_come(self._context),
        )
        if self._stopped:
            self._guarded.stop(self._stopped)
        report: Report | None = None
        try:
            with self._recorder:
                report = self._guarded.run(self._listing(shared), one=self._one)
        finally:
            self._count(self._guarded, report)
        return report

    def push_again(self) -> None:
        """Let other tasks pull what they would pull if nothing had been replayed."""
        self._recorder.finish()

    def _count(self, guarded: GuardedTask, report: Report | None) -> None:
        """Tell Airflow's statistics what this pass did, and not what an earlier one of the same try did."""
        counts = dict(report.task_run_counts()) if report else {}
        if report is not None:
            counts["executed"] -= report.earlier
        counts["lease_renewals_failed"] = guarded.lease_failures
        count(
            counts,
            {
                "dag_id": self.identity.dag_id,
                "task_id": self.identity.task_id,
                "operation": self.space.operation,
            },
        )

    def close(self, report: Report, outcome: str, error: Exception | str) -> None:
        """Record that the try ended otherwise than its report says."""
        if self._guarded is not None:
            self._guarded.close(report, outcome, str(error))

    def stop(self, reason: str) -> None:
        """Let what has begun finish, and begin nothing else."""
        self._stopped = reason
        if self._guarded is not None:
            self._guarded.stop(reason)

    def is_stopped(self) -> bool:
        """Whether the task was asked to stop."""
        return bool(self._stopped)

    def may_be_deferred(self) -> bool:
        """Whether the triggerer can watch the ledger: not where Airflow 3.1 would have to be asked for a token."""
        return triggers_may_ask_on_threads() or not asks_airflow(find_connection(self.conn_id))

    def summary(self, report: Report) -> dict[str, Any]:
        """Return what several documents give to XCom."""
        return report.summary(
            key_namespace=self.space.key_namespace,
            operation=self.space.operation,
            business_date=self.business_date.isoformat(),
            **({"cycle": self.space.cycle} if self.space.cycle else {}),
        )

    def date_asset_events(self) -> None:
        """Put the business date into the asset events of the task, where ``from_asset_extra()`` looks for
        it."""
        for extra in extras_of_assets(self._context, self._task.outlets):
            extra.setdefault("business_date", self.business_date.isoformat())

    # -- what the execution is given ------------------------------------------------------------------------

    def _check_date(self) -> None:
        task, warn = self._task, self._task.log.warning
        try:
            check_date(
                self.ledger.runs, self._facts, self.identity, task.business_date, self._resolved, warn=warn
            )
        except DateChangedError as error:
            if self.spec.mode == "enforce":
                raise
            warn("observe: would have blocked %s", error)
        except LedgerUnavailable as error:
            if self.spec.mode == "enforce":
                raise
            warn("observe: the business date is not compared with earlier runs: %s", error)

    def _date_or_skip(self) -> ResolvedDate:
        if isinstance(self._resolved, NoBusinessDate):
            raise AirflowSkipException(self._resolved.reason)
        return self._resolved

    def _key_space(self, business_date: date) -> KeySpace:
        task = self._task
        return KeySpace(
            key_namespace=task.key_namespace or task.dag_id,
            operation=task.operation or task.task_id,
            business_date=business_date,
            cycle=self._cycle(business_date),
            once_per=self.spec.once_per,
            deployment=task.guard_settings.deployment,
        )

    def _cycle(self, business_date: date) -> str:
        if self.spec.once_per == "document":
            return ""
        return cycle_of_run(self._facts.partition_key, business_date, cycle_text(self._task.cycle))

    def _one_document(self) -> Any:
        task = self._task
        if not task.names_documents and self.identity.map_index >= 0:
            raise ConfigurationError(without_document(task.task_id))
        if task.names_one_document and task.document is None:
            raise DocumentError(
                f"document of task {task.task_id!r} has no value in this run (None): the task it comes from "
                "gave nothing. Without a document the task would stand for the run as a whole, so nothing "
                "was executed."
            )
        return task.document

    def _task_try(self) -> TaskTry:
        return TaskTry(
            identity=self.identity,
            space=self.space,
            key_shape=self._shape().text,
            mode=self.spec.mode,
            date_source=self._date.source.value,
            date_detail=self._date.detail,
            own_at=self._date.own_at,
            map_length=map_length_of(self._context),
            date_of_then=lambda at: date_of_then(at, self._facts, self._task.business_date),
        )

    def _shape(self) -> KeyShape:
        task, cycle = self._task, cycle_text(self._task.cycle)
        return KeyShape.of(
            self.space,
            documents=task.names_documents,
            document_key=self.spec.document_key,
            call_per=self.spec.call_per,
            business_date=f"{written_date(task.declared_date)} in {zone_name(self._facts.timezone)}",
            partition=bool(self._facts.partition_key) and not cycle,
        )

    def _shared(self) -> dict[str, Any]:
        task = self._task
        arguments = task.op_kwargs or {}
        if not isinstance(arguments, Mapping):
            raise ConfigurationError(
                f"op_kwargs of task {task.task_id!r} gave {type(arguments).__name__}, not a mapping."
            )
        return {**self._context, **arguments, "templates_dict": task.templates_dict}

    def _callee(self, shared: Mapping[str, Any]) -> Callee:
        task = self._task
        function = Function.of("python_callable", task.python_callable, tuple(task.op_args))
        function.check_arguments(frozenset(task.op_kwargs or ()))
        return function.callee(
            shared, tuple(task.op_args), gives=given_to_callable(self.spec), adapt=self._as_airflow_calls
        )

    def _as_airflow_calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return call_as_airflow(function, outlet_events_of(self._context), self._task.log)

    def _verify(self, shared: Mapping[str, Any]) -> Callee | None:
        effect = self.spec.side_effect
        if not isinstance(effect, External) or effect.verify is None:
            return None
        return Function.of("External(verify=…)", effect.verify).callee(
            shared, gives=given_to_verify(self.spec)
        )

    def _on_rerun(self, shared: Mapping[str, Any]) -> Callee | None:
        function = self.spec.side_effect.on_rerun
        if function is None:
            return None
        return Function.of("on_rerun", function).callee(
            shared, gives=given_to_on_rerun(self.spec), adapt=self._as_airflow_calls
        )

    def _expected(self, shared: Mapping[str, Any]) -> Expected | None:
        given = {"business_date": self.business_date, "cycle": self.space.cycle}

        def call(function: Callable[..., Any]) -> Any:
            return Function.of("expected", function).callee(shared, gives=GIVEN_TO_ALL).call(given)

        return expected_now(self.spec.expected, call)

    def _listing(self, shared: Mapping[str, Any]) -> Listing | None:
        documents = self._task.documents
        if not self._task.names_many_documents:
            return None
        if not callable(documents):
            return lambda: documents
        callee = Function.of("documents", documents).callee(shared, gives=GIVEN_TO_ALL)
        return lambda: callee.call({"business_date": self.business_date, "cycle": self.space.cycle})


def skipped_by_callable(report: Report) -> AirflowSkipException | None:
    """Return what the function of a single document raised to skip the task, where nothing can have happened."""
    _, error = report.errors[0] if report.single and report.errors else (None, None)
    return error if isinstance(error, AirflowSkipException) else None
