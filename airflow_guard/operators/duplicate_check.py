"""``DuplicateCheckOperator``: keys that occur more than once, on one side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, get_args

from airflow.sdk import BaseOperator

from airflow_guard.airflow_compat import let_threads_talk, sql_check_result
from airflow_guard.core.errors import BreaksFound, ConfigurationError, GuardError
from airflow_guard.core.keys import cycle_text
from airflow_guard.core.parameters import OnRepeatedKey, one_of
from airflow_guard.hooks.connections import side_engines
from airflow_guard.operators.business_date import RendersBusinessDate, refuse_uncalled_rule
from airflow_guard.operators.endings import as_airflow
from airflow_guard.operators.run_context import business_date_of
from airflow_guard.reconciling.drilldown import find_duplicates
from airflow_guard.reconciling.rules import Rules
from airflow_guard.reconciling.sides import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    import jinja2
    from airflow.sdk import Context, XComArg

    from airflow_guard.core.dates import BusinessDateRule, RunFacts
    from airflow_guard.reconciling.comparison import DuplicateCheck
    from airflow_guard.reconciling.rules import Break

_SAMPLE = 20
_FIRST = 10


class DuplicateCheckOperator(RendersBusinessDate, BaseOperator):
    """Fails if a key occurs more than once, and names the keys. It needs no ledger.

    ::

        DuplicateCheckOperator(
            task_id="one_statement_a_day",
            side=Side(conn_id="core_banking", table="statement", key=["account", "business_date"],
                      where="business_date = :business_date"),
        )

    :param side: the rows; with ``key``.
    :param group_by: columns within whose values a key must be unique. Default: within all rows.
    :param max_breaks: how many keys are named. Default 1,000.
    :param on_break: ``"fail"`` (default) or ``"warn"``.
    :param business_date: as ``IdempotentOperator`` has it; the side can name ``:business_date``.
    :param cycle: the side can name ``:cycle``. (templated)
    :raises ConfigurationError: when the DAG is parsed, for what cannot work.
    """

    template_fields: Sequence[str] = ("business_date", "cycle", "side")
    template_fields_renderers: ClassVar[dict[str, str]] = {"side": "py"}
    shallow_copy_attrs: Sequence[str] = ("business_date", "side", "rules")
    ui_color = "#e6f2e9"

    def __init__(
        self,
        *,
        side: Side,
        group_by: Sequence[str] = (),
        max_breaks: int = 1_000,
        on_break: OnRepeatedKey = "fail",
        business_date: str | date | BusinessDateRule | Callable[[RunFacts], Any] | XComArg | None = None,
        cycle: str | XComArg = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(side, Side):
            raise ConfigurationError(f"side={side!r:.80} is not a Side(conn_id=…, table=… or sql=…).")
        if not side.keys:
            raise ConfigurationError("The side has no key=: nothing says what must not occur twice.")
        if on_break not in get_args(OnRepeatedKey):
            raise ConfigurationError(f"on_break={on_break!r}: use {one_of(get_args(OnRepeatedKey))}.")
        refuse_uncalled_rule(business_date)
        self.side = side
        self.rules = Rules(group_by=group_by, max_breaks=max_breaks)
        self.on_break = on_break
        self.business_date: Any = business_date
        self.cycle = cycle
        self.check_results: list[Any] = []

    def left_as_is(self) -> frozenset[str]:
        """See :class:`RendersBusinessDate`."""
        return frozenset({"side"})

    def render_ours(self, context: Context, jinja_env: jinja2.Environment, seen_oids: set[int]) -> None:
        """Render the side, and check the names in it again as they are now."""
        try:
            self.side = self.side.rendered(
                lambda value: self.render_template(value, context, jinja_env, seen_oids)
            )
        except GuardError as error:
            raise as_airflow(error) from error

    def execute(self, context: Context) -> dict[str, Any]:
        """Count, and return a summary.

        :raises GuardFailure: a key occurs more than once, or is NULL; or what no retry helps.
        :raises GuardRetry: the database did not answer.
        :raises AirflowSkipException: no business date by its rule.
        """
        let_threads_talk()
        try:
            day = business_date_of(context, self.business_date)
        except GuardError as error:
            raise as_airflow(error) from error
        try:
            with side_engines([self.side]) as (engine,):
                check = find_duplicates(
                    self.side,
                    self.rules,
                    engine=engine,
                    parameters={"business_date": day, "cycle": cycle_text(self.cycle)},
                )
            return self._outcome(check, day)
        except GuardError as error:
            raise as_airflow(error.about(f"{context['ti'].dag_id} / {self.task_id} of {day}")) from error

    def _outcome(self, check: DuplicateCheck, day: date) -> dict[str, Any]:
        said = self._said(check, day)
        self.check_results = [
            sql_check_result(
                name=self.task_id,
                check_type="unique",
                success=check.passed,
                severity="error" if self.on_break == "fail" else "warn",
                column=", ".join(self.side.keys),
                table=self.side.describe(),
                expected="every key once",
                actual=f"{len(check.breaks):,} keys more than once, or NULL",
                description=said,
                params={"business_date": day.isoformat()},
            )
        ]
        if not check.passed and self.on_break == "fail":
            raise BreaksFound(said)
        (self.log.info if check.passed else self.log.warning)(said)
        return {
            "business_date": day.isoformat(),
            "records": check.reading.records,
            "duplicates": len(check.breaks),
            "capped": check.capped,
            "documents": [each.document for each in check.breaks if each.key][:_SAMPLE],
        }

    def _said(self, check: DuplicateCheck, day: date) -> str:
        where = f"{check.reading.name}, {day}: {check.reading.records:,} records"
        if check.passed:
            return f"{where}, every key once."
        more = len(check.breaks) - _FIRST
        left = (f", and {more:,} more" if more > 0 else "") + (
            ", and others beyond max_breaks" if check.capped else ""
        )
        named = "; ".join(_line(each) for each in check.breaks[:_FIRST])
        return f"{where}, keys that occur more than once or are NULL: {named}{left}."


def _line(each: Break) -> str:
    if not each.key:
        return f"{each.source_records:,} rows without key"
    return f"{each.document} ({each.source_records:,} rows)"
