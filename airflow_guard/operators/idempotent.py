"""``IdempotentOperator``: a ``PythonOperator`` whose effect happens once, however often the task runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from airflow.providers.standard.operators.python import PythonOperator

from airflow_guard.airflow_compat import AirflowSkipException, OperatorPartial, XComArg, conf
from airflow_guard.core.errors import ConfigurationError, GuardError
from airflow_guard.core.parameters import duration
from airflow_guard.core.report import Outcome, Report, root_of
from airflow_guard.execution.spec import CLAIM_CHUNK
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.operators.asking import DoubtDesk, may_ask
from airflow_guard.operators.business_date import RendersBusinessDate, is_function, refuse_undated_runs
from airflow_guard.operators.declaration import Declaration, refuse_leaked
from airflow_guard.operators.endings import GuardLink, as_airflow
from airflow_guard.operators.mapping import (
    GuardedOperator,
    GuardedPartial,
    no_role,
    refuse_second_key,
    taking,
)
from airflow_guard.operators.task_try import GuardedTry, skipped_by_callable
from airflow_guard.operators.waiting import BACKSTOP, Wait, wait_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow.sdk import DAG, Context

    from airflow_guard.core.dates import BusinessDateRule, RunFacts
    from airflow_guard.core.effects import SideEffect
    from airflow_guard.core.expectations import Expected
    from airflow_guard.core.parameters import (
        CallPer,
        EffectName,
        Mode,
        OncePer,
        OnConcurrent,
        OnDuplicate,
        OnEmpty,
        OnOtherRun,
        OnRepeated,
    )
    from airflow_guard.operators.asking import AskedDoubts
    from airflow_guard.triggers.ledger import LedgerEvent


@dataclass(frozen=True)
class _Resumed:
    """Where a try goes on.

    :param task_run_id: its id in the ledger; ``None``: it begins.
    :param deadline_at: of its wait for others, if it was in one.
    :param answered: whether a person was asked. Airflow keeps one question for a try, so nobody is asked again.
    """

    task_run_id: int | None = None
    deadline_at: str | None = None
    answered: bool = False


class IdempotentOperator(GuardedOperator, RendersBusinessDate, PythonOperator):
    """Calls a function once per key: operation, business date, cycle and document.

    ::

        IdempotentOperator(
            task_id="post",
            operation="post_statement",
            python_callable=post_statement,  # (payload, connection, business_date, …) -> JSON value
            documents=statements_of,
            document_key="statement_no",
            side_effect="database",
            ledger_conn_id="core_banking",
        )

    The function gets what its signature names: ``document``, ``payload``, ``documents`` and ``batch_id``
    (batches), ``business_date``, ``cycle``, ``idempotency_key``, ``attempt``, ``generation``, ``connection`` (database),
    ``effect`` (external), Airflow's context, and ``op_kwargs``. All parameters of ``PythonOperator`` stay.
    One document, or the run as a whole, returns the function's result, also where it is replayed; several
    return a summary.

    :param operation: what the task does, as the key has it; by default the task's id. A fixed text.
    :param key_namespace: by default the DAG's id; the same for a renamed copy of the DAG. A fixed text.
    :param business_date: a template, a date, a rule such as ``previous_day()``, or a callable that takes
        :class:`~airflow_guard.core.run_facts.RunFacts`. Default: the run's own date.
    :param cycle: settlement cycle within the business date, for schedules that fire several times a day.
        (templated)
    :param document: the one document of the task, an id or a mapping. (templated)
    :param documents: several: a list, the result of another task, or a callable (called like
        ``python_callable``, with ``business_date`` and ``cycle``) that returns or yields ids or mappings.
    :param document_key: the field of a mapping that is its identity.
    :param fingerprint_fields: the fields whose change counts as other content. Default: all.
    :param once_per: ``"date"`` (default): once per business date and document; ``"document"``: once, whatever
        the date.
    :param call_per: ``"document"`` (default), or ``"batch"``: one call, and one effect, for up to
        ``batch_size``.
    :param batch_size: documents in a batch. Default 500.
    :param max_workers: documents at a time, on threads. Default 1: in the main thread, which
        ``execution_timeout`` can interrupt.
    :param side_effect: ``"external"`` (default), ``"database"``, ``External(…)`` or ``Database()``.
    :param on_duplicate: for a key that is done: ``"replay"`` (default) returns the stored result, ``"skip"``
        skips the task if all is done, ``"fail"``.
    :param on_concurrent: for a key that another attempt is at work on: ``"wait"`` (default) or ``"fail"``
        (retryable).
    :param wait_timeout: the longest wait in all. Default 1 hour; then the task fails, retryable.
    :param poll_interval: between two looks at the ledger while waiting. Default 10 s.
    :param deferrable: whether the wait is the triggerer's. Default ``[operators] default_deferrable``.
    :param on_other_run: for a key of another automatic run: ``"fail"`` (default), or ``"replay"`` if listing
        the same documents again is normal.
    :param expected: how many documents the listing should bring: a number, ``Expected(least=…, most=…, total=…, amount=…)``,
        or a callable of the business date (called like ``documents``) that returns one of them. Each try, and each mapped
        instance, compares its own listing, before its first effect. Default: nothing is expected.
    :param on_empty: for a listing without a document: ``"warn"`` (default), ``"fail"`` (retryable), or ``"allow"``.
    :param on_repeated: for a document that is listed more than once: ``"warn"`` (default) counts it once, ``"fail"``
        refuses the listing before its first effect.
    :param stop_on_failure: begin no other document after a failure. Default no.
    :param max_rejected: more rejected documents than this fail the task. Default 0.
    :param mode: ``"enforce"`` or ``"observe"``. Default ``[airflow_guard] mode``.
    :param guarded_from: earlier business dates fail before the function: they ran unguarded.
    :param retired_operations: operations of this DAG's past that were other work.
    :param ledger_conn_id: connection of the ledger. Default ``[airflow_guard] ledger_conn_id``.
    :param lease: how long others leave a key alone after the last sign of life. Default ``[airflow_guard]
        lease_seconds``.
    :param max_hold: how long a try may keep its keys. Default 24 hours.
    :raises ConfigurationError: when the DAG is parsed, for what cannot work.
    """

    operator_extra_links = (GuardLink(),)
    template_fields: Sequence[str] = (
        *PythonOperator.template_fields,
        "business_date",
        "cycle",
        "document",
        "documents",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **PythonOperator.template_fields_renderers,
        "document": "py",
        "documents": "py",
    }
    shallow_copy_attrs: Sequence[str] = (
        *PythonOperator.shallow_copy_attrs,
        "business_date",
        "document",
        "documents",
        "side_effect",
        "guard_spec",
        "_declared",
    )

    # What the caller itself has given, which the metaclass mixes with default_args before __init__ sees it.
    _given_here: frozenset[str] = frozenset()
    _unmapped = False
    _attempt: GuardedTry | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note what the caller has given."""
        del args
        made = super().__new__(cls)
        object.__setattr__(made, "_given_here", frozenset(kwargs))
        object.__setattr__(made, "_unmapped", bool(kwargs.get("_airflow_from_mapped")))
        return made

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        operation: str | None = None,
        key_namespace: str | None = None,
        business_date: str | date | BusinessDateRule | Callable[[RunFacts], Any] | XComArg | None = None,
        cycle: str | XComArg = "",
        document: Any = None,
        documents: Iterable[Any] | Callable[..., Iterable[Any]] | XComArg | None = None,
        document_key: str | None = None,
        fingerprint_fields: Sequence[str] | None = None,
        once_per: OncePer = "date",
        call_per: CallPer = "document",
        batch_size: int = CLAIM_CHUNK,
        max_workers: int = 1,
        side_effect: EffectName | SideEffect = "external",
        on_duplicate: OnDuplicate = "replay",
        on_concurrent: OnConcurrent = "wait",
        wait_timeout: timedelta | float = timedelta(hours=1),
        poll_interval: timedelta | float = timedelta(seconds=10),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_other_run: OnOtherRun = "fail",
        expected: int | Expected | Callable[..., int | Expected | None] | None = None,
        on_empty: OnEmpty = "warn",
        on_repeated: OnRepeated = "warn",
        stop_on_failure: bool = False,
        max_rejected: int = 0,
        mode: Mode | None = None,
        guarded_from: str | date | None = None,
        retired_operations: Sequence[str] = (),
        ledger_conn_id: str | None = None,
        lease: timedelta | float | None = None,
        max_hold: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        declared = {
            name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")
        }
        self.operation = operation
        self.key_namespace = key_namespace
        self.business_date: Any = business_date
        self.cycle = cycle
        self.document = document
        self.documents: Any = documents
        self.side_effect = side_effect
        self.ledger_conn_id = ledger_conn_id
        self.deferrable = deferrable
        # Said now: rendering may leave nothing of what was named, which is another thing than naming nothing.
        self.names_one_document = document is not None
        self.names_many_documents = documents is not None
        self._declared = declared | {name: kwargs.get(name) for name in ("op_args", "op_kwargs")}
        defaults = kwargs.get("default_args") or {}
        super().__init__(python_callable=python_callable, **kwargs)
        self.guard_settings = GuardSettings.read()
        try:
            refuse_leaked(defaults, self._given_here)
            self.guard_spec = self.declaration.check(self.guard_settings)
        except GuardError as error:
            if self._unmapped:  # the task runs already, and no retry will help
                raise as_airflow(error) from error
            raise
        self.wait_timeout = duration("wait_timeout", wait_timeout)
        self.poll_interval = duration("poll_interval", poll_interval)

    @classmethod
    @taking(__init__)  # type: ignore[arg-type]  # self is never given by name
    def partial(cls, **kwargs: Any) -> GuardedPartial:
        """See ``BaseOperator.partial``; what is wrong with the task is said when it is expanded."""
        made: OperatorPartial = super().partial(**kwargs)
        made._expand_called = True  # noqa: SLF001 - it is expanded by the one that is returned
        return GuardedPartial(operator_class=cls, kwargs=made.kwargs, params=made.params)

    @property
    def declared_date(self) -> object:
        """``business_date`` as the DAG file has it: a template is not rendered."""
        return self._declared["business_date"]

    @property
    def declaration(self) -> Declaration:
        """What the DAG file declares about the task."""
        dag = self.get_dag()
        dag_id = dag.dag_id if dag is not None else None
        return Declaration(self.task_id, dag_id, self._declared, is_mapped=self._unmapped)

    @property
    def dag(self) -> DAG:
        """The task's DAG."""
        return super().dag

    @dag.setter
    def dag(self, dag: DAG | None) -> None:
        super(IdempotentOperator, type(self)).dag.__set__(self, dag)  # type: ignore[attr-defined]
        if dag is not None and not self._unmapped:
            refuse_second_key(dag, self.declaration)
            refuse_undated_runs(dag, self.task_id, self.business_date)

    def _convert_is_setup(self, value: bool) -> bool:  # noqa: FBT001 - Airflow's name and form
        return self._no_role("setup", value)

    def _convert_is_teardown(self, value: bool) -> bool:  # noqa: FBT001 - as above
        return self._no_role("teardown", value)

    def _no_role(self, role: str, value: bool) -> bool:  # noqa: FBT001 - as above
        if value:
            error = ConfigurationError(no_role(self.task_id, role))
            raise (as_airflow(error) if self._unmapped else error) from None
        return value

    def left_as_is(self) -> frozenset[str]:
        """See :class:`RendersBusinessDate`."""
        return frozenset({"documents"} if is_function(self.documents) else ())

    # -- running --------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Execute what the ledger allows.

        :raises GuardFailure: no retry helps.
        :raises GuardRetry: a retry helps.
        :raises AirflowSkipException: no business date by its rule, or all done and ``on_duplicate="skip"``.
        """
        return self._execute(context, _Resumed())

    def execute_complete(self, context: Context, event: LedgerEvent, answered: bool = False) -> Any:  # noqa: FBT001, FBT002 - as Airflow passes it on
        """Go on after a wait; otherwise as :meth:`execute`."""
        if event["error"]:
            self.log.warning("While waiting, the ledger did not answer: %s", event["error"])
        return self._execute(context, _Resumed(event["task_run_id"], event["deadline_at"], answered=answered))

    def execute_answered(self, context: Context, event: dict[str, Any], asked: AskedDoubts) -> Any:
        """Go on with the answer of a person, or without one; otherwise as :meth:`execute`."""
        return self._execute(context, _Resumed(asked["task_run_id"], answered=True), (event, asked))

    def on_kill(self) -> None:
        """Let the document in hand finish, and begin no other."""
        if self._attempt is not None:
            self._attempt.stop("the task was asked to stop")

    def _execute(
        self, context: Context, resumed: _Resumed, answer: tuple[dict[str, Any], AskedDoubts] | None = None
    ) -> Any:
        try:
            self._attempt = GuardedTry(self, context)
            with self._attempt as attempt:
                if answer is not None:
                    DoubtDesk(context, attempt, resumed.task_run_id or 0).settle(*answer)
                report = self._work(attempt, resumed)
                if not resumed.answered and may_ask(attempt, report):
                    DoubtDesk(context, attempt, attempt.task_run_id or 0).ask(report)
                attempt.push_again()
                return self._outcome(attempt, report)
        except GuardError as error:
            raise as_airflow(error) from error

    def _work(self, attempt: GuardedTry, resumed: _Resumed) -> Report:
        report = attempt.run(resumed.task_run_id)
        others = attempt.spec.on_concurrent == "wait"
        wait = Wait.of(self.wait_timeout, self.poll_interval, resumed.deadline_at)
        while report.only_waits(for_others=others):
            wait = wait.until_settled(report.settles_in_s)
            if not wait.left or attempt.is_stopped():
                break
            if report.settling:
                self.log.info("Waiting %.0f s, until verify can settle what is in doubt.", wait.settles_in_s)
            if self.deferrable and wait.is_long and attempt.may_be_deferred():
                self._defer(attempt, report, wait, answered=resumed.answered)
            if not wait.here(attempt.ledger, attempt.space.key_date, report, attempt.is_stopped):
                break
            report = attempt.run(attempt.task_run_id)
        if not report.only_waits(for_others=others):
            return report
        if not report.waiting:
            attempt.close(report, "failed", str(report.failure(attempt.what)))
            return report
        over = wait_over(report, attempt.what, self.wait_timeout, stopped=attempt.is_stopped())
        attempt.close(report, "failed", over)
        raise over

    def _defer(self, attempt: GuardedTry, report: Report, wait: Wait, *, answered: bool) -> NoReturn:
        trigger = wait.trigger(attempt.conn_id, attempt.space.key_date, report, attempt.task_run_id or 0)
        kwargs = {"answered": True} if answered else None
        self.defer(
            trigger=trigger, method_name="execute_complete", kwargs=kwargs, timeout=wait.left + BACKSTOP
        )

    def _outcome(self, attempt: GuardedTry, report: Report) -> Any:
        if (skip := skipped_by_callable(report)) is not None:
            attempt.close(report, "skipped", skip)
            raise skip
        failure = report.failure(attempt.what, attempt.spec.max_rejected)
        if failure is not None:
            if report.note:
                failure.args = (f"{failure} {report.note}",)
            shown = root_of(failure)  # by Airflow, as the failure's own cause
            for cause in report.causes:
                if cause is not shown:
                    self.log.error("Another document failed: %s", cause, exc_info=cause)
            raise failure
        if report.documents and report.counts[Outcome.SKIPPED] == report.documents:
            raise AirflowSkipException(f"{attempt.what}: {'; '.join(report.log_lines())}")
        attempt.date_asset_events()
        value = report.result if report.single else attempt.summary(report)
        if self.show_return_value_in_logs:
            self.log.info("Done. Returned value was: %s", value)
        else:
            self.log.info("Done. Returned value not shown")
        return value
