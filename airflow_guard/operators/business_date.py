"""The ``business_date`` of an operator: a template, a date, a rule or a callable, rendered alike by every operator of this
package, and compared with the schedule of its DAG when that is parsed."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from croniter import croniter  # type: ignore[import-untyped] # Airflow's own reader of cron expressions
from jinja2 import UndefinedError

from airflow_guard.airflow_compat import XComArg, cron_of, is_continuous
from airflow_guard.core import dates
from airflow_guard.core.calendar_rules import PreviousBusinessDay
from airflow_guard.core.date_checks import SkippingRule, lost_date, skips
from airflow_guard.core.dates import BusinessDateRule, OwnDateRule, RunFacts
from airflow_guard.core.errors import BusinessDateError, CalendarError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import jinja2
    from airflow.sdk import DAG, BaseOperator, Context

    _Base = BaseOperator
else:
    _Base = object


_RULES = {
    getattr(dates, name): name
    for name in (
        "business_day",
        "business_month_end",
        "from_asset_extra",
        "month_end",
        "previous_business_day",
        "previous_day",
        "same_day",
    )
}
_CRON_FIELDS = 5
_FROM, _UNTIL = date(2024, 1, 1), date(2026, 1, 1)
"""Two years: with a leap day, and with holidays on every weekday."""
_WITH_COUNTRY = frozenset({"business_day", "business_month_end", "previous_business_day"})


class RendersBusinessDate(_Base):
    """Renders templates, and leaves alone callables and rules, which Airflow would call with its context."""

    business_date: Any

    def left_as_is(self) -> frozenset[str]:
        """Return the template fields that :meth:`render_ours` renders, or that are not rendered."""
        return frozenset()

    def render_ours(self, context: Context, jinja_env: jinja2.Environment, seen_oids: set[int]) -> None:
        """Render what is left of :meth:`left_as_is`."""

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        if parent is not self:
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
            return
        ours = {"business_date"} | self.left_as_is()
        others = [name for name in template_fields if name not in ours]
        super()._do_render_template_fields(self, others, context, jinja_env, seen_oids)
        self._render_business_date(context, jinja_env, seen_oids)
        self.render_ours(context, jinja_env, seen_oids)

    def _render_business_date(
        self, context: Context, jinja_env: jinja2.Environment, seen_oids: set[int]
    ) -> None:
        template = self.business_date
        if template is None or isinstance(template, (date, BusinessDateRule)) or is_function(template):
            return
        try:
            rendered = self.render_template(template, context, jinja_env, seen_oids)
        except UndefinedError as error:
            # Asset-triggered runs have no ds. A date in conf may stand in for it, which execute() finds out.
            rendered = _Undefined(str(template), str(error))
        # "Nothing" from a template or another task is a mistake, not a business date that was left out.
        self.business_date = "" if rendered is None else rendered


class _Undefined:
    """A business date whose template uses what the run does not have. An error only if no date stands in for
    it."""

    def __init__(self, template: str, problem: str) -> None:
        self._template = template
        self._problem = problem

    def __call__(self, facts: RunFacts) -> NoReturn:
        raise BusinessDateError(
            f"business_date={self._template!r} has no value in {facts}: {self._problem}. Asset-triggered and "
            "some other runs have no ds and no logical date. Trigger the run with conf "
            '{"business_date": "YYYY-MM-DD"}, or use a rule that needs neither, such as from_asset_extra().'
        )

    def __repr__(self) -> str:
        return repr(self._template)


def written_date(business_date: object) -> str:
    """Return how a task dates its runs, in words that are the same in every process."""
    if business_date is None:
        return ""
    if isinstance(business_date, BusinessDateRule) or (
        isinstance(business_date, str) and "{{" in business_date
    ):
        return str(business_date)
    name = getattr(business_date, "__qualname__", None) if is_function(business_date) else None
    return f"{type(business_date).__name__} {name}" if name else type(business_date).__name__


def is_function(value: object) -> bool:
    """Return whether a parameter is a function, and not the result of another task."""
    return callable(value) and not isinstance(value, XComArg)


def refuse_uncalled_rule(business_date: object) -> None:
    """Refuse the function of a rule that was not called: Airflow would hand it the run as its argument.

    :raises ConfigurationError: writes the call.
    """
    name = None
    if isinstance(business_date, type) and issubclass(business_date, BusinessDateRule):
        name = business_date._constructor or business_date.__name__  # noqa: SLF001 - of this package
    elif callable(business_date) and getattr(business_date, "__hash__", None) is not None:
        name = _RULES.get(business_date)
    if name is not None:
        argument = '"DE"' if name in _WITH_COUNTRY else ""
        raise ConfigurationError(
            f"business_date={name} is the function, not the rule that it returns. Write business_date={name}({argument})."
        )


def refuse_undated_runs(dag: DAG, task_id: str, business_date: object) -> None:
    """Refuse a schedule whose runs the task cannot date, or one that leaves out dates of its rule.

    :param business_date: the operator's value, ``None`` for the run's own date.
    :raises ConfigurationError: says what to change.
    """
    timetable: Any = dag.timetable
    if is_continuous(timetable) and (business_date is None or isinstance(business_date, OwnDateRule)):
        raise ConfigurationError(
            f"Task {task_id!r} cannot be dated by a @continuous schedule: the data interval of a run begins where the "
            "run before ended, the first one's on the start_date of the DAG, and many runs share a date. Say what a "
            "run is about, such as business_date=lambda facts: facts.local_date(facts.run_after_at) for the day on "
            'which it is due, and tell the runs of a day apart by cycle=, or list documents with once_per="document".'
        )
    cron = cron_of(timetable)
    lost = _lost(business_date, *cron) if cron is not None and skips(business_date) else None
    if cron is not None and lost is not None:
        own, left = lost
        other = "run" if isinstance(business_date, PreviousBusinessDay) else "previous"
        raise ConfigurationError(
            f"business_date={business_date} of task {task_id!r} skips a run such as the one dated {own}, and no other "
            f"run of the schedule {cron[0]!r} works on {left}: it would never be done. Run the DAG every day (the rule "
            f"leaves out days by itself), or write otherwise={other!r}, which gives that run {left}."
        )


@lru_cache(maxsize=64)
def _lost(rule: SkippingRule, expression: str, intervals: bool) -> tuple[date, date] | None:  # noqa: FBT001
    fields = expression.split()
    if len(fields) != _CRON_FIELDS or not all(part.isdigit() for part in fields[:2]):
        return None  # several runs a day
    start = datetime.combine(_FROM - timedelta(days=1), time(23))
    runs = croniter(f"0 0 {' '.join(fields[2:])}", start).all_next(datetime)
    own_dates = [at.date() for at in takewhile(lambda at: at.date() < _UNTIL, runs)]
    try:
        return lost_date(rule, own_dates[:-1] if intervals else own_dates)
    except (BusinessDateError, CalendarError):
        return None  # the run will say so
