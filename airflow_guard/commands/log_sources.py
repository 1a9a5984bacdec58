"""Where ``diagnose`` reads the scheduling log: Airflow's API if it is named and answers, else its metadata database."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from airflow_guard.acts.arguments import UsageError
from airflow_guard.commands import output
from airflow_guard.commands.airflow_rest import RestLog, open_rest
from airflow_guard.commands.ledgers import database_at, is_no_file, is_url
from airflow_guard.core.commands import without_password
from airflow_guard.core.errors import ResolutionError
from airflow_guard.store.scheduling_log import SchedulingLog
from airflow_guard.store.tables import ledger_tables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    import httpx

TOKEN = "AIRFLOW_GUARD_API_TOKEN"  # noqa: S105 - the name of a variable
"""Holds the token for the API: on a command line everybody could read it."""
_HEARTBEAT_S = 300


@dataclass(frozen=True)
class LogSource:
    """Where the scheduling log is read.

    :param where: in words, without a password.
    """

    log: RestLog | SchedulingLog
    heartbeat_s: int
    where: str


@contextmanager
def scheduling_log(given: argparse.Namespace) -> Iterator[LogSource]:
    """Give what reads runs and tries; on standard error it is said what that is, and what could not be reached.

    :raises ResolutionError: neither the API nor the database can be reached. A retry helps if they were down.
    """
    url, why_not = _api(given), ""
    if url:
        with open_rest(url, os.environ.get(TOKEN)) as client:
            try:
                _ask(client)
            except ResolutionError as error:
                why_not = str(error)
            else:
                where = f"Airflow's API at {url}"
                output.note(f"The scheduling log is read through {where}.")
                yield LogSource(RestLog(client), _HEARTBEAT_S, where)
                return
    try:
        engine, heartbeat_s = _metadata(given)
    except ResolutionError as error:
        raise ResolutionError(f"{why_not} {error}".strip()) from error
    try:
        _ping(engine, why_not)
        where = f"Airflow's metadata database, {engine.url.render_as_string(hide_password=True)}"
        output.note(f"{why_not} The scheduling log is read from {where}.".strip())
        yield LogSource(SchedulingLog(engine), heartbeat_s, where)
    finally:
        engine.dispose()


def _api(given: argparse.Namespace) -> str | None:
    """Return the address of the API server, if it is named, or configured and there is a token for it."""
    if given.airflow_url:
        return str(given.airflow_url)
    if given.airflow_db or not os.environ.get(TOKEN):
        return None
    try:
        from airflow.configuration import conf
    except ImportError:
        return None
    configured: str | None = conf.get("api", "base_url", fallback=None)
    return configured


def _ask(client: httpx.Client) -> None:
    """Ask for one DAG, which needs what reading runs needs: an address and a token that are good.

    :raises ResolutionError: no answer, or refused.
    """
    import httpx

    try:
        response = client.get("/api/v2/dags", params={"limit": 1})
    except httpx.HTTPError as error:
        raise ResolutionError(f"Airflow's API at {client.base_url} does not answer: {error}.") from error
    if response.status_code != httpx.codes.OK:
        no_token = response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
        help_ = f"; {TOKEN} must hold a token that it takes" if no_token else ""
        raise ResolutionError(f"Airflow's API at {client.base_url} refuses: {response.status_code}{help_}.")


def _ping(engine: sa.Engine, why_not: str) -> None:
    try:
        with engine.connect():
            pass
    except sa.exc.SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        where = engine.url.render_as_string(hide_password=True)
        raise ResolutionError(
            f"{why_not} Airflow's metadata database {where} cannot be reached: {said}. Give --airflow-url or "
            "--airflow-db.".strip()
        ) from error


def _metadata(given: argparse.Namespace) -> tuple[sa.Engine, int]:
    """Return an engine of Airflow's metadata database, and the heartbeat timeout."""
    if given.airflow_db:
        if not is_url(given.airflow_db):
            raise UsageError(
                f"--airflow-db is a URL, such as postgresql://user@host/airflow, not {without_password(given.airflow_db)}"
            )
        return database_at(given.airflow_db, ledger_tables(), create=False).business_engine, _HEARTBEAT_S
    try:
        from airflow.configuration import conf
    except ImportError:
        raise ResolutionError("Airflow is not installed here: give --airflow-url or --airflow-db.") from None
    url = sa.make_url(conf.get("database", "sql_alchemy_conn"))
    if is_no_file(url):
        raise ResolutionError(
            f"Airflow's metadata database {url.database} is not there. Give --airflow-url or --airflow-db."
        )
    heartbeat = conf.getint("scheduler", "task_instance_heartbeat_timeout", fallback=_HEARTBEAT_S)
    return sa.create_engine(url), heartbeat
