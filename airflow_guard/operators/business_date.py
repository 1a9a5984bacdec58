"""The ``business_date`` of an operator: a template, a date, a rule or a callable, rendered and resolved alike by
every operator of this package."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import UndefinedError

from airflow_guard.airflow_compat import XComArg
from airflow_guard.core.dates import BusinessDateRule, RunFacts
from airflow_guard.core.errors import BusinessDateError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import jinja2
    from airflow.sdk import BaseOperator, Context

    _Base = BaseOperator
else:
    _Base = object


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
