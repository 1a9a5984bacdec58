"""``ReconciliationSensor``: two sets of rows, in two databases or in one, that must agree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseSensorOperator

from airflow_guard.airflow_compat import (
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferralTimeout,
    conf,
)
from airflow_guard.core.errors import ConfigurationError, GuardError, NeverCompared, Stopped
from airflow_guard.core.keys import cycle_text
from airflow_guard.hooks.ledger import ledger_conn_id as find_ledger
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.operators.business_date import RendersBusinessDate, refuse_uncalled_rule
from airflow_guard.operators.endings import GuardLink, GuardTimeout, as_airflow, count, extras_of_assets
from airflow_guard.operators.waiting import BACKSTOP, pause
from airflow_guard.sensors.asking import BreakDesk, why_not_asked
from airflow_guard.sensors.check_try import CheckTry
from airflow_guard.sensors.declaration import (
    ReconciliationTask,
    SensorSpec,
    check_names,
    check_sensor_words,
)
from airflow_guard.triggers import SHORTEST_DEFERRAL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    import jinja2
    from airflow.sdk import Context, XComArg

    from airflow_guard.core.dates import BusinessDateRule, RunFacts
    from airflow_guard.core.parameters import OnBreak
    from airflow_guard.reconciling.rules import DecimalLike
    from airflow_guard.reconciling.sides import Side
    from airflow_guard.sensors.asking import AskedBreaks
    from airflow_guard.sensors.report import TryReport

OPERATOR_MODES = ("enforce", "observe")
"""Modes of ``IdempotentOperator``, which ``default_args`` may hold for all tasks of a DAG."""


class ReconciliationSensor(ReconciliationTask, RendersBusinessDate, BaseSensorOperator):
    """Compares two sides until they agree, and names the documents in which they do not.

    ::

        ReconciliationSensor(
            task_id="reconcile",
            source=Side(conn_id="core_banking", table="posting", key="document_no",
                        where="business_date = :business_date"),
            target=Side(conn_id="warehouse", sql="SELECT …", key="document_no"),
            group_by=["currency"],
        )

    It looks again every ``poke_interval`` until the sides agree, until the same difference was seen
    ``settle_pokes`` times in a row, or until ``timeout``. Only then is a difference a break. It also looks again at
    earlier dates. Breaks are kept in the ledger, with their age.

    :param source: what should be there.
    :param target: what is there, usually the result table.
    :param group_by: columns that totals are kept apart by, usually the currency.
    :param compare: more columns that must be equal, document by document; needs keys.
    :param count_tolerance: rows by which a group may differ. Default 0.
    :param absolute_tolerance: amount by which a total, and each document, may differ. Default 0.
    :param relative_tolerance: the same as a fraction of the absolute source amount. Default 0.
    :param allow_empty: whether no row on either side passes. Default no.
    :param allow_missing_amounts: whether rows without an amount pass if both sides have as many. Default no.
    :param max_breaks: how many breaks are named. Default 1,000.
    :param settle_pokes: how often in a row the same difference must be seen. Default 3.
    :param recheck_days: how many earlier dates to look at again. Default 3 if both sides name ``:business_date``.
    :param on_break: ``"fail"`` (default), ``"warn"``, or ``"ask"``: a person accepts the breaks in the Airflow UI, with
        a reason, or lets the task fail.
    :param ask_timeout: how long the question is open with ``on_break="ask"``. Default 24 hours; then the task fails.
    :param operation: by which breaks are found again; by default the task's id. A fixed text.
    :param key_namespace: by default the DAG's id. A fixed text.
    :param business_date: as ``IdempotentOperator`` has it. Default: the run's own date.
    :param cycle: settlement cycle within the business date; the sides can name ``:cycle``. (templated)
    :param ledger_conn_id: connection of the ledger. Default ``[airflow_guard] ledger_conn_id``.
    :param timeout: from the first look of a try. Default 1 hour.
    :param deferrable: whether the triggerer waits between two looks. Default ``[operators] default_deferrable``.
    :raises ConfigurationError: when the DAG is parsed, for what cannot work.
    """

    operator_extra_links = (GuardLink(),)
    template_fields: Sequence[str] = ("business_date", "cycle", "source", "target")
    template_fields_renderers: ClassVar[dict[str, str]] = {"source": "py", "target": "py"}
    shallow_copy_attrs: Sequence[str] = ("business_date", "source", "target", "sensor_spec")
    ui_color = "#e6f2e9"

    def __init__(
        self,
        *,
        source: Side,
        target: Side,
        group_by: Sequence[str] = (),
        compare: Sequence[str] = (),
        count_tolerance: int = 0,
        absolute_tolerance: DecimalLike = 0,
        relative_tolerance: DecimalLike = 0,
        allow_empty: bool = False,
        allow_missing_amounts: bool = False,
        max_breaks: int = 1_000,
        settle_pokes: int = 3,
        recheck_days: int | None = None,
        on_break: OnBreak = "fail",
        ask_timeout: timedelta | float | None = None,
        operation: str | None = None,
        key_namespace: str | None = None,
        business_date: str | date | BusinessDateRule | Callable[[RunFacts], Any] | XComArg | None = None,
        cycle: str | XComArg = "",
        ledger_conn_id: str | None = None,
        timeout: timedelta | float = timedelta(hours=1),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        values = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if kwargs.get("mode") in OPERATOR_MODES and kwargs["mode"] == _default(kwargs, "mode"):
            del kwargs["mode"]  # meant for the guarded tasks of the DAG, whose mode is another thing
        super().__init__(timeout=timeout, **kwargs)
        self.source = source
        self.target = target
        self.operation = operation
        self.key_namespace = key_namespace
        self.business_date: Any = business_date
        self.cycle = cycle
        self.ledger_conn_id = ledger_conn_id
        self.deferrable = deferrable
        self.check_results: list[Any] = []
        self.guard_settings = GuardSettings.read()
        self._stopped = False
        try:
            self.sensor_spec = self._declared(values, kwargs)
        except GuardError as error:
            if kwargs.get("_airflow_from_mapped"):  # the task runs already, and no retry will help
                raise as_airflow(error) from error
            raise

    def _declared(self, values: dict[str, Any], given: dict[str, Any]) -> SensorSpec:
        check_sensor_words(**given)
        leaked = _default(given, "operation")
        if leaked is not None and leaked == self.operation:
            raise ConfigurationError(
                "operation comes from default_args, which other tasks share: they would close each other's breaks. "
                "Give it to the task itself."
            )
        find_ledger(self.ledger_conn_id, self.guard_settings)
        refuse_uncalled_rule(self.business_date)
        dag = self.get_dag()
        check_names(self.task_id, dag.dag_id if dag else None, values, self.guard_settings.deployment)
        self._refuse_second_operation()
        return SensorSpec.of(values)

    def _refuse_second_operation(self) -> None:
        dag = self.get_dag()
        for other in dag.task_dict.values() if dag else ():
            if isinstance(other, ReconciliationSensor) and other is not self and _key(other) == _key(self):
                raise ConfigurationError(
                    f"Tasks {other.task_id!r} and {self.task_id!r} have one operation, {_key(self)[1]!r}: each would "
                    "close the breaks of the other. Give each its own."
                )

    # -- templates ------------------------------------------------------------------------------------------

    def left_as_is(self) -> frozenset[str]:
        """See :class:`RendersBusinessDate`."""
        return frozenset({"source", "target"})

    def render_ours(self, context: Context, jinja_env: jinja2.Environment, seen_oids: set[int]) -> None:
        """Render both sides, and check the names in them again as they are now."""

        def render(value: Any) -> Any:
            return self.render_template(value, context, jinja_env, seen_oids)

        try:
            self.source = self.source.rendered(render)
            self.target = self.target.rendered(render)
        except GuardError as error:
            raise as_airflow(error) from error

    # -- running --------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Look until all is decided.

        :raises GuardFailure: breaks, or what no retry helps.
        :raises GuardTimeout: the timeout is over: the difference still changed, or a side could not be read.
        :raises AirflowSkipException: no business date by its rule; or with ``soft_fail``, not compared in time.
        """
        return self._run(context, None)

    def execute_complete(self, context: Context, event: Any = None, began_at: str | None = None) -> Any:
        """Go on after a wait; otherwise as :meth:`execute`."""
        del event
        return self._run(context, datetime.fromisoformat(began_at) if began_at else None)

    def execute_answered(self, context: Context, event: dict[str, Any], asked: AskedBreaks) -> Any:
        """Go on with the answer of a person, or without one."""
        return self._run(context, None, (event, asked))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral.

        Not as sensors do it, where ``soft_fail`` makes "skipped" of every failure, breaks among them. If the
        triggerer did not wake the task in time, it looks now.
        """
        try:
            return super(BaseSensorOperator, self).resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self.log.warning("The triggerer did not wake this task in time; it looks now.")
            return self._run(context, None)

    def on_kill(self) -> None:
        """Stop waiting."""
        self._stopped = True

    def _run(
        self,
        context: Context,
        began_at: datetime | None,
        answer: tuple[dict[str, Any], AskedBreaks] | None = None,
    ) -> Any:
        try:
            with CheckTry(self, context, began_at) as attempt:
                desk = BreakDesk(context, self, attempt)
                if answer is not None:
                    desk.settle(*answer)
                while not attempt.look():
                    self._wait(attempt)
                asked = [int(number) for number, _ in answer[1]["breaks"]] if answer is not None else []
                report = attempt.report(asked)
                if answer is None:
                    self._ask(desk, report)
            return self._outcome(context, report)
        except NeverCompared as error:
            self._time_over(error)
        except GuardError as error:
            raise as_airflow(error) from error

    def _ask(self, desk: BreakDesk, report: TryReport) -> None:
        failure = report.failure() if self.sensor_spec.on_break == "ask" else None
        if failure is None:
            return
        why_not = why_not_asked(report, failure)
        if why_not is None:
            self.log.info("%s\n%s", report.what, report.text())
            desk.ask(report)
        else:
            self.log.warning("Nobody is asked about it: %s.", why_not)

    def _time_over(self, error: NeverCompared) -> None:
        if self.soft_fail:
            raise AirflowSkipException(f"Skipped (soft_fail), not reconciled: {error}") from error
        raise GuardTimeout(str(error)) from error

    def _outcome(self, context: Context, report: TryReport) -> Any:
        warn = self.sensor_spec.on_break == "warn"
        self.log.info("%s\n%s", report.what, report.text())
        ti = context["ti"]
        tags = {"dag_id": ti.dag_id, "task_id": ti.task_id, "operation": self.operation or self.task_id}
        count({"breaks": len(report.own.open)}, tags)
        for line in report.warnings():
            self.log.warning(line)
        self.check_results = report.check_results(
            self.task_id, self.source.describe(), self.target.describe(), "warn" if warn else "error"
        )
        failure = report.failure()
        if isinstance(failure, NeverCompared) or (failure is not None and not warn):
            # A task that fails returns nothing.
            context["ti"].xcom_push(key="reconciliation", value=report.summary())
            if isinstance(failure, NeverCompared) or not report.time_over:
                raise failure
            raise GuardTimeout(str(failure)) from failure
        if failure is not None:
            self.log.warning('on_break="warn": %s', failure)
        self._tell_assets(context, report)
        return report.summary()

    def _tell_assets(self, context: Context, report: TryReport) -> None:
        for extra in extras_of_assets(context, self.outlets):
            extra.update(report.asset_extra())

    # -- waiting --------------------------------------------------------------------------------------------

    def _wait(self, attempt: CheckTry) -> None:
        interval = self._get_next_poke_interval(attempt.began_at, lambda: attempt.elapsed_s, attempt.pokes)
        wait_s = max(min(interval, attempt.left_s), 0.0)
        until = datetime.now(UTC) + timedelta(seconds=wait_s)
        away = wait_s >= SHORTEST_DEFERRAL_S
        if self.deferrable and away:
            self.defer(
                trigger=DateTimeTrigger(moment=until),
                method_name="execute_complete",
                kwargs={"began_at": attempt.began_at.isoformat()},
                timeout=timedelta(seconds=wait_s) + BACKSTOP,
            )
        if self.reschedule and away:
            raise AirflowRescheduleException(until)  # type: ignore[no-untyped-call]
        pause(wait_s, lambda: self._stopped)
        if self._stopped:
            raise Stopped(
                f"{attempt.what}: the task was asked to stop while it waited. Another try begins anew."
            )


def _default(given: dict[str, Any], name: str) -> Any:
    return (given.get("default_args") or {}).get(name)


def _key(task: ReconciliationSensor) -> tuple[str | None, str, object]:
    try:
        cycle: object = cycle_text(task.cycle)
    except ConfigurationError:
        cycle = task.cycle  # an XComArg: only the run will tell
    return task.key_namespace, task.operation or task.task_id, cycle
