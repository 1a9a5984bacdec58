"""``GuardRerunOperator``: authorises a rerun from a DAG, so that a second person can approve it in the Airflow UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_guard.acts import rerun, reruns
from airflow_guard.acts.rerun import Request
from airflow_guard.airflow_compat import let_threads_talk
from airflow_guard.core.decisions import check_words
from airflow_guard.core.errors import GuardError, ResolutionError
from airflow_guard.core.keys import normalise_document
from airflow_guard.core.parameters import duration
from airflow_guard.core.reruns import DEFAULT_EXPIRY, check_expiry
from airflow_guard.core.run_facts import parse_business_date
from airflow_guard.hooks.ledger import ledger_conn_id, open_ledger
from airflow_guard.operators.endings import as_airflow
from airflow_guard.reading.listing import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_guard.store.ledger import Ledger

DIGEST = "digest"
"""The XCom key of what a preview has shown."""


class GuardRerunOperator(BaseOperator):
    """Authorises that done keys are executed once more; it executes nothing by itself.

    ::

        GuardRerunOperator(
            task_id="authorise", key_namespace="statements", operation="post_statement",
            start="{{ params.start }}", end="{{ params.end }}", reason="{{ params.reason }}",
            approved_by="{{ ti.xcom_pull('four_eyes')['responded_by_user']['name'] }}",
            previewed="{{ ti.xcom_pull('preview', key='digest') }}",
        )

    The task returns what a person reads: the keys, when, by which run and with what result they were done, and the
    command that executes them.

    :param key_namespace: the DAG, or ``key_namespace``, whose keys are meant. (templated)
    :param operation: the operation, by default of that task its ``task_id``. (templated)
    :param start: the first business date. (templated)
    :param end: the last business date. Default: the first. (templated)
    :param documents: only these documents. Default: all that are done. (templated)
    :param cycle: only this cycle. Default: all. (templated)
    :param reason: why; mandatory. (templated)
    :param actor: who asks for it. Default: the user who triggered the run. (templated)
    :param approved_by: who has approved it, which must be somebody else; ``None`` if nobody is asked. (templated)
    :param previewed: the digest of what was approved, which the task with ``dry_run=True`` leaves in XCom under the key
        ``digest``: anything else is refused. (templated)
    :param expires: how long it holds, at most 31 days. Default 24 hours.
    :param without_reversal: the first effects stay. Default: the task's ``on_rerun`` reverses them.
    :param dry_run: check and tell, authorise nothing.
    :param ledger_conn_id: connection of the ledger. Default ``[airflow_guard] ledger_conn_id``.
    :raises ConfigurationError: when the DAG is parsed, for what cannot work.
    """

    template_fields: Sequence[str] = (
        "key_namespace",
        "operation",
        "start",
        "end",
        "documents",
        "cycle",
        "reason",
        "actor",
        "approved_by",
        "previewed",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"documents": "py"}
    ui_color = "#f6e7d8"

    def __init__(
        self,
        *,
        key_namespace: str,
        operation: str,
        start: str,
        end: str | None = None,
        documents: Sequence[Any] | None = None,
        cycle: str | None = None,
        reason: str,
        actor: str | None = None,
        approved_by: str | None = None,
        previewed: str | None = None,
        expires: timedelta | float = DEFAULT_EXPIRY,
        without_reversal: bool = False,
        dry_run: bool = False,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.expires = duration("expires", expires)
        check_expiry(self.expires)
        self.key_namespace = key_namespace
        self.operation = operation
        self.start = start
        self.end = end
        self.documents = documents
        self.cycle = cycle
        self.reason = reason
        self.actor = actor
        self.approved_by = approved_by
        self.previewed = previewed
        self.without_reversal = without_reversal
        self.only_tells = dry_run
        self.ledger_conn_id = ledger_conn_id

    def execute(self, context: Context) -> str:
        """Authorise, and return what was authorised and how it is executed.

        :raises GuardFailure: a key is not done, the reason is missing, or the approver is who asks. No retry helps.
        :raises GuardRetry: the ledger did not answer.
        """
        let_threads_talk()
        try:
            actor = self._actor(context)
            ledger = open_ledger(ledger_conn_id(self.ledger_conn_id))
            try:
                said = self._authorise(
                    ledger, actor, lambda key, value: context["ti"].xcom_push(key=key, value=value)
                )
            finally:
                ledger.close()
        except GuardError as error:
            raise as_airflow(error) from error
        self.log.info("%s", said)
        return said

    def _authorise(self, ledger: Ledger, actor: str, push: Callable[[str, str], None]) -> str:
        actor, reason = check_words(actor, str(self.reason or ""))
        start = parse_business_date(self.start, source="start")
        end = parse_business_date(self.end, source="end") if self.end else start
        if end < start:
            raise ResolutionError(f"end={end} lies before start={start}. Nothing was authorised.")
        views, others = reruns.done_keys(
            ledger,
            Selection(
                dag=self.key_namespace,
                business_date=start,
                until=end,
                operation=self.operation,
                cycle=self.cycle,
                documents=[normalise_document(each) for each in self.documents or ()],
            ),
        )
        seen = reruns.digest(views, without_reversal=self.without_reversal)
        self._check_previewed(seen)
        request = Request(actor, reason, self.expires, self.without_reversal, self.ledger_conn_id)
        plan = rerun.authorise(ledger, views, others, request, dry_run=self.only_tells)
        lines = [*plan.lines(), *plan.commands().values(), *plan.by_hand()]
        if self.only_tells:
            lines.append("Nothing is authorised yet.")
            push(DIGEST, seen)
        return "\n".join([f"Asked for by {actor}: {reason}", *lines])

    def _check_previewed(self, seen: str) -> None:
        if self.previewed is None or self.only_tells:
            return
        if str(self.previewed).strip() != seen:
            raise ResolutionError(
                "What was previewed is not what would be authorised now: keys have come, have gone, or were executed again "
                "since. Nothing was authorised. Trigger the DAG once more, so that somebody sees and approves what there is."
            )

    def _actor(self, context: Context) -> str:
        asks = str(self.actor or getattr(context["dag_run"], "triggering_user_name", None) or "").strip()
        if not asks:
            raise ResolutionError(
                f"Nobody is known to ask for it: run {context['run_id']} was not triggered by a user. Give actor=…. Nothing "
                "was authorised."
            )
        if self.approved_by is None or self.only_tells:
            return asks
        approver = str(self.approved_by).strip()
        if not approver or approver == "None":
            raise ResolutionError("approved_by has no value in this run. Nothing was authorised.")
        if approver == asks:
            raise ResolutionError(
                f"{asks} asks for it and has approved it: a second person must. Nothing was authorised."
            )
        return f"{asks}, approved by {approver}"
