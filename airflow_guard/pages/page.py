"""One page: who asks, where it lies, and how it is written."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import HTTPException, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from airflow_guard.core.decisions import CONSEQUENCES
from airflow_guard.pages import wording
from airflow_guard.pages.access import CALLER
from airflow_guard.pages.airflow_plugin import MOUNTED_AT
from airflow_guard.reading.scope import NotThere
from airflow_guard.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import date

    from airflow_guard.pages.access import Caller
    from airflow_guard.pages.ledgers import Ledgers

PAGE_SIZE = 50


class ChooseLedger(Exception):
    """Several ledgers have what an address means, or could have it, and it names none.

    :param ledgers: their names.
    """

    def __init__(self, ledgers: tuple[str, ...]) -> None:
        super().__init__(", ".join(ledgers))
        self.ledgers = ledgers


class Page:
    """A request for a page, as the routes see it.

    :param request: the request, which came through the gate.
    :raises HTTPException: it did not (403).
    """

    def __init__(self, request: Request) -> None:
        if CALLER not in request.scope:
            raise HTTPException(403)
        self.request = request
        self.caller: Caller = request.scope[CALLER]
        self.ledgers: Ledgers = request.app.state.ledgers
        self.names: tuple[str, ...] = request.app.state.ledger_names()

    @property
    def readable(self) -> frozenset[str]:
        """The DAGs that the caller may read."""
        return self.caller.readable

    @property
    def wanted(self) -> tuple[str, ...]:
        """The ledgers that the page is about: that of the query, else all; empty if none is configured.

        :raises NotThere: the query names one that is not configured.
        """
        named = self.text("ledger")
        if named and named not in self.names:
            raise NotThere
        return (named,) if named else self.names

    @functools.cached_property
    def ledger(self) -> str:
        """The one ledger that the page is about: that of the query, or the only one.

        :raises NotThere: the query names one that is not configured, or none is.
        :raises ChooseLedger: there are several, and the query names none.
        """
        if len(self.wanted) > 1:
            raise ChooseLedger(self.wanted)
        if not self.wanted:
            raise NotThere
        return self.wanted[0]

    @property
    def of_one(self) -> bool:
        """Whether the page shows something of one ledger that has no like in the others."""
        return "ledger" in vars(self)

    def chosen_form(self, ledger: str) -> str:
        """Return the id of the form that takes what is chosen of a ledger's rows."""
        return "chosen" if len(self.wanted) == 1 else f"chosen-{self.names.index(ledger)}"

    @property
    def root(self) -> str:
        """Where the pages lie, without a slash at the end; also below a path that a proxy adds."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def airflow(self) -> str:
        """Where Airflow's UI lies, without a slash at the end."""
        return self.root.removesuffix(MOUNTED_AT)

    def text(self, name: str) -> str:
        """Return a parameter of the query, without white space around it; empty if absent."""
        return self.request.query_params.get(name, "").strip()

    def whole_number(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a parameter as a whole number within bounds; what is none is the default."""
        text = self.text(name)
        if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 9:
            return default
        return max(least, min(most, int(text)))

    @property
    def offset(self) -> int:
        """How many rows come before this page of a list."""
        return (self.whole_number("page", 1, least=1, most=2_000) - 1) * PAGE_SIZE

    def url(self, path: str, **query: Any) -> str:
        """Return the address of a page; a parameter that is ``None`` or empty is left out."""
        return f"{self.root}/{path}{_query(query)}"

    def here(self, **changed: Any) -> str:
        """Return the address of this page with some parameters changed."""
        query = {**dict(self.request.query_params), **changed}
        path = self.request.url.path
        return f"{path}{_query(query)}"

    def airflow_url(
        self,
        dag_id: str,
        run_id: str | None = None,
        task_id: str | None = None,
        map_index: int | None = None,
        try_number: int | None = None,
    ) -> str:
        """Return the address of a DAG, run, task or try in Airflow's UI."""
        from urllib.parse import quote

        parts = [self.airflow, "dags", quote(dag_id, safe="")]
        if run_id:
            parts += ["runs", quote(run_id, safe="")]
        if task_id:
            parts += ["tasks", quote(task_id, safe="")]
            if map_index is not None and map_index >= 0:
                parts += ["mapped", str(map_index)]
        return "/".join(parts) + _query({"try_number": try_number})

    def render(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page."""
        text = environment().get_template(template).render(page=self, version=__version__, **values)
        return HTMLResponse(text, status_code=status)


def page_of(request: Request) -> Page:
    """Return a request as the routes see it.

    A function, since FastAPI as Airflow 3.1 has it does not understand the annotations of a class in a module that
    postpones them.

    :raises HTTPException: the request did not come through the gate (403).
    """
    return Page(request)


def _query(query: dict[str, Any]) -> str:
    kept = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else ""


@functools.cache
def environment() -> Environment:
    """Return where the templates are: everything is escaped, a name that is misspelt is an error."""
    env = Environment(
        loader=PackageLoader("airflow_guard.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "shown": wording.shown,
        "number": wording.number,
        "amount": wording.amount,
        "age": wording.age,
        "instant": wording.instant,
        "day": wording.day,
        "said": wording.said,
    }
    env.filters.update(filters)
    env.filters["of_ledger"] = _of_ledger
    env.filters["kind"] = lambda it: type(it).__name__
    env.globals.update(
        CONSEQUENCES=CONSEQUENCES, timeline_class=wording.kind_of, timeline_words=wording.words
    )
    return env


def _of_ledger(rows: Iterable[Any], ledger: str | None) -> list[tuple[str, Any]]:
    """Return rows with their ledger; where it is ``None`` they have it already."""
    return list(rows) if ledger is None else [(ledger, row) for row in rows]


def business_date(text: str) -> date | None:
    """Return a business date of a query, ``None`` if the text is none."""
    from airflow_guard.core.dates import parse_business_date
    from airflow_guard.core.errors import BusinessDateError

    try:
        return parse_business_date(text, source="the page") if text else None
    except BusinessDateError:
        return None
