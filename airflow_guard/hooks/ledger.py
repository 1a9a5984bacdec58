"""Opening the ledger of a connection.

``ledger_conn_id`` of an operator comes first, then ``[airflow_guard] ledger_conn_id``. Engines are kept per
process and connection; a task closes their connections when it ends.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_guard.airflow_compat import AirflowNotFoundException, conf, runs_in_this_process
from airflow_guard.core.errors import (
    ConfigurationError,
    LedgerNotConfigured,
    LedgerNotMigrated,
    LedgerUnavailable,
)
from airflow_guard.core.states import FollowUp, State
from airflow_guard.hooks.connections import MAX_CONNECTIONS, content_of, database_of
from airflow_guard.hooks.settings import GuardSettings
from airflow_guard.store import dialects
from airflow_guard.store.ledger import Ledger
from airflow_guard.store.migrate import check_migrated, ensure_sqlite
from airflow_guard.store.tables import ledger_tables

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow.sdk import Connection

    from airflow_guard.store.database import LedgerDatabase

_ON_ONE_MACHINE = frozenset({"LocalExecutor", "SequentialExecutor"})
_KUBERNETES_POD = "AIRFLOW_IS_K8S_EXECUTOR_POD"
_open: dict[tuple[Any, ...], Ledger] = {}
_checked: set[tuple[Any, ...]] = set()
_opening = threading.Lock()


def ledger_conn_id(conn_id: str | None, settings: GuardSettings | None = None) -> str:
    """Return the id of the connection that holds the ledger.

    :param conn_id: what an operator names.
    :raises LedgerNotConfigured: neither the operator nor the configuration names one. A retry does not help.
    """
    chosen = conn_id or (settings or GuardSettings.read()).ledger_conn_id
    if not chosen:
        raise LedgerNotConfigured(
            "No ledger: set ledger_conn_id on the operator (or in the DAG's default_args), or ledger_conn_id "
            "in section [airflow_guard] of airflow.cfg (AIRFLOW__AIRFLOW_GUARD__LEDGER_CONN_ID), to the id "
            "of a postgres, mysql or sqlite connection."
        )
    return chosen


def open_database(conn_id: str | None = None, *, max_connections: int = MAX_CONNECTIONS) -> LedgerDatabase:
    """Return the ledger's database, migrated or not.

    :param conn_id: the connection; ``None``: the configured one.
    :param max_connections: upper limit for the ledger itself, and again for business transactions.
    :raises LedgerNotConfigured: no connection is named, or there is none of that name.
    :raises ConfigurationError: the connection cannot hold a ledger.
    """
    settings = GuardSettings.read()
    connection = find_connection(ledger_conn_id(conn_id, settings))
    return _ledger_of(connection, settings, max_connections)[1].database


def open_ledger(
    conn_id: str | None = None,
    *,
    max_connections: int = MAX_CONNECTIONS,
    executor: str | None = None,
    even_if_down: bool = False,
) -> Ledger:
    """Return the ledger, ready for use. A SQLite file is created on first use.

    :param conn_id: the connection; ``None``: the configured one.
    :param max_connections: upper limit for the ledger itself, and again for business transactions.
    :param executor: the task's own ``executor=``, which decides whether a SQLite file is safe.
    :param even_if_down: return it unchecked if it is down: who only observes works on without it.
    :raises LedgerNotConfigured: no connection is named, or there is none of that name.
    :raises ConfigurationError: the connection cannot hold a ledger, or not for this executor.
    :raises LedgerNotMigrated: its tables are missing or of another version.
    :raises LedgerUnavailable: down (a retry helps).
    """
    settings = GuardSettings.read()
    connection = find_connection(ledger_conn_id(conn_id, settings))
    try:
        return ledger_of(connection, settings, max_connections=max_connections, executor=executor)
    except LedgerUnavailable:
        if not even_if_down:
            raise
        return _ledger_of(connection, settings, max_connections)[1]


def ledger_of(
    connection: Connection,
    settings: GuardSettings,
    *,
    max_connections: int = MAX_CONNECTIONS,
    executor: str | None = None,
) -> Ledger:
    """Return the ledger of a connection that was looked up before; otherwise as :func:`open_ledger`."""
    key, ledger = _ledger_of(connection, settings, max_connections)
    if ledger.database.dialect == dialects.SQLITE:
        refuse_file_elsewhere(str(connection.conn_id), executor)
        ensure_sqlite(ledger.database)
    if key not in _checked:
        check_migrated(ledger.database, ledger=str(connection.conn_id))
        _checked.add(key)
    return ledger


def ledger_to_look_at(conn_id: str, *, max_connections: int) -> Ledger:
    """Return the ledger for one who looks at it; nothing is created, whatever kind of database it is.

    :param conn_id: the connection.
    :param max_connections: upper limit.
    :raises LedgerNotConfigured: there is no such connection.
    :raises ConfigurationError: the connection cannot hold a ledger.
    :raises LedgerNotMigrated: its tables are missing or of another version, or there is no such SQLite file.
    :raises LedgerUnavailable: down (a retry helps).
    """
    key, ledger = _ledger_of(find_connection(conn_id), GuardSettings.read(), max_connections)
    database = ledger.database
    if key not in _checked:
        if database.dialect == dialects.SQLITE and not Path(database.url.database or "").is_file():
            raise LedgerNotMigrated(
                f"Ledger {conn_id!r}: its SQLite file does not exist yet; the first task makes it."
            )
        check_migrated(database, ledger=conn_id)
        _checked.add(key)
    return ledger


def find_connection(conn_id: str) -> Connection:
    """Return an Airflow connection.

    :raises LedgerNotConfigured: there is none of that name. A retry does not help.
    """
    from airflow.sdk import BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise not_found(conn_id) from error


def not_found(conn_id: str) -> LedgerNotConfigured:
    """Return the error for a connection that does not exist."""
    return LedgerNotConfigured(
        f"There is no connection {conn_id!r}, which ledger_conn_id (of the operator or of [airflow_guard]) "
        "names as the ledger. Create it, or correct the name."
    )


def still_held(ledger: Ledger, key_date: date, hashes: Sequence[str]) -> dict[str, str]:
    """Return which keys another attempt is at work on, and who that is.

    A key is free again when its attempt has ended or its lease is over.
    """
    rows = ledger.read(key_date, hashes)
    return {
        row.key_hash: row.done_by
        for row in rows.values()
        if not row.lease_over and (row.state is State.IN_PROGRESS or row.follow_up is FollowUp.PENDING)
    }


def _ledger_of(
    connection: Connection, settings: GuardSettings, max_connections: int
) -> tuple[tuple[Any, ...], Ledger]:
    # A connection that was changed is another one; a forked process must not share sockets. By its id as well: it is
    # what messages name.
    key = (
        os.getpid(),
        connection.conn_id,
        content_of(connection),
        settings.schema,
        settings.table_prefix,
        max_connections,
    )
    with _opening:
        if key not in _open:
            tables = ledger_tables(settings.table_prefix, settings.schema)
            _open[key] = Ledger(database_of(connection, tables, max_connections=max_connections))
        return key, _open[key]


# -- a ledger in a file ----------------------------------------------------------------------------------


def refuse_file_elsewhere(conn_id: str, executor: str | None = None) -> None:
    """Refuse a SQLite ledger for tasks that may run on several machines: each would have a file of its own.

    ``dag.test()`` runs everything in one process, whatever the configuration says.

    :param conn_id: for the message.
    :param executor: the task's own ``executor=``; ``None``: the default of the deployment, or of any team.
    :raises ConfigurationError: a retry does not help.
    """
    if runs_in_this_process():
        return
    if os.environ.get(_KUBERNETES_POD):
        # In a pod the configuration says LocalExecutor, as the pod itself runs its one task that way.
        _refuse(conn_id, "the KubernetesExecutor")
    for name in executors_of_task(conf.get("core", "executor", fallback="LocalExecutor") or "", executor):
        if _class_name(name) not in _ON_ONE_MACHINE:
            _refuse(conn_id, name)


def executors_of_task(configured: str, own: str | None) -> list[str]:
    """Return the executors that a task may run on, as ``[core] executor`` writes them.

    >>> executors_of_task("LocalExecutor,CeleryExecutor", None)
    ['LocalExecutor']
    >>> executors_of_task("LocalExecutor,fast:acme.FastExecutor", "fast")
    ['acme.FastExecutor']
    >>> executors_of_task("LocalExecutor;payments=CeleryExecutor", None)
    ['LocalExecutor', 'CeleryExecutor']

    :param configured: the option: a comma list, the first being the default; teams are separated by ``;`` and
        written ``team=list``. An alias is written ``alias:executor``.
    :param own: the task's own ``executor=``: an alias, a class name or a module path.
    """
    teams = [team.rpartition("=")[2].split(",") for team in configured.split(";") if team.strip()]
    if own is None:
        return [names[0].strip().rpartition(":")[2] for names in teams]
    for name in (each.strip() for names in teams for each in names):
        alias, _, executor = name.rpartition(":")
        if own in (alias, executor, _class_name(executor)):
            return [executor]
    return [own]


def _class_name(name: str) -> str:
    return name.rpartition(".")[2]


def _refuse(conn_id: str, executor: str) -> None:
    raise ConfigurationError(
        f"The ledger {conn_id!r} is a SQLite file, and this task runs on {executor}, which may use several "
        "machines: each would keep a ledger of its own and execute what the others have done. Point "
        "ledger_conn_id, or [airflow_guard] ledger_conn_id, to PostgreSQL, MySQL or MariaDB. SQLite is for "
        "LocalExecutor and dag.test()."
    )
