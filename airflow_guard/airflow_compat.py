"""What differs between the supported versions of Airflow (3.1 to 3.3), and what this package takes from parts
of Airflow that are not its public interface. Nothing of either kind stands in another module.

=========================  ======================================  ================================
what                       3.1                                     3.2, 3.3
=========================  ======================================  ================================
exceptions                 ``airflow.exceptions``                  ``airflow.sdk.exceptions``
configuration              ``airflow.configuration``               ``airflow.sdk.configuration``
partition of a run         absent from the context                 ``partition_key``, ``partition_date``
supervisor and threads     one thread at a time, or it breaks      a lock (3.3: in triggers too)
statistics                 ``airflow.stats``                       ``airflow.sdk.observability.stats``
a question to a person     a trigger asks for the answer           a state of its own (3.3)
results of SQL checks      by version of ``common.sql``            by version of ``common.sql``
=========================  ======================================  ================================
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import XComArg
from airflow.sdk.bases.decorator import (
    DecoratedMappedOperator,
    DecoratedOperator,
    TaskDecorator,
    _TaskDecorator,
)
from airflow.sdk.bases.operator import get_merged_defaults
from airflow.sdk.definitions._internal.expandinput import ListOfDictsExpandInput
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS
from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

if TYPE_CHECKING:
    from uuid import UUID

    from airflow.sdk import DAG, Connection, TaskGroup
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferralTimeout,
        TaskDeferred,
    )
else:
    try:
        from airflow.sdk.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowNotFoundException,
            AirflowRescheduleException,
            AirflowSensorTimeout,
            AirflowSkipException,
            TaskDeferralTimeout,
            TaskDeferred,
        )
    except ImportError:  # 3.1
        from airflow.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowNotFoundException,
            AirflowRescheduleException,
            AirflowSensorTimeout,
            AirflowSkipException,
            TaskDeferralTimeout,
            TaskDeferred,
        )
    try:
        from airflow.sdk.configuration import conf
    except ImportError:  # 3.1
        from airflow.configuration import conf

__all__ = [
    "KNOWN_CONTEXT_KEYS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "DecoratedMappedOperator",
    "DecoratedOperator",
    "MappedOperator",
    "OperatorPartial",
    "ShownQuestion",
    "TaskDecorator",
    "TaskDeferralTimeout",
    "TaskDeferred",
    "XComArg",
    "await_answer",
    "conf",
    "count_stat",
    "default_args_of",
    "expanded_names",
    "hostname",
    "let_threads_talk",
    "put_question",
    "quiet_copy",
    "runs_in_this_process",
    "sql_check_result",
    "task_decorator_class",
    "triggers_may_ask_on_threads",
    "user_of_request",
    "without_known_secrets",
]

_TRIGGER_BACKSTOP = timedelta(minutes=15)
"""How much longer than its trigger a task waits: a triggerer that is down must not keep it forever."""

task_decorator_class = _TaskDecorator
"""What ``@task`` returns: the wrapped function with ``partial``, ``expand`` and ``override``."""


def default_args_of(dag: DAG | None, task_group: TaskGroup | None) -> dict[str, Any]:
    """Return the ``default_args`` that a task of this DAG and group gets."""
    defaults, _ = get_merged_defaults(
        dag=dag, task_group=task_group, task_params=None, task_default_args=None
    )
    return defaults


def expanded_names(operator: MappedOperator) -> frozenset[str] | None:
    """Return the names that an operator is mapped over, ``None`` if only the run will tell."""
    expand_input = operator._get_specified_expand_input()  # noqa: SLF001 - there is no public way
    if not isinstance(expand_input, ListOfDictsExpandInput):
        return frozenset(expand_input.value)
    names: set[str] = set()
    for instance in expand_input.value if isinstance(expand_input.value, Sequence) else (None,):
        if not isinstance(instance, Mapping):
            return None
        names.update(instance)
    return frozenset(names)


def quiet_copy(connection: Connection, extra: Mapping[str, Any]) -> Connection:
    """Return a connection with other extras, which says nothing to Airflow's supervisor when they are read.

    :param extra: a JSON object.
    """
    from airflow.sdk import Connection

    class QuietConnection(Connection):
        @property
        def extra_dejson(self) -> dict[str, Any]:
            return dict(json.loads(self.extra or "{}"))

    return QuietConnection(
        conn_id=connection.conn_id,
        conn_type=connection.conn_type,
        host=connection.host,
        login=connection.login,
        password=connection.password,
        schema=connection.schema,
        port=connection.port,
        extra=json.dumps(extra),
    )


@functools.cache
def let_threads_talk() -> None:
    """Let the threads of a task talk to its supervisor one at a time.

    Airflow 3.1 does not: a connection or variable that two threads look up at the same moment mixes up the
    answers, and ends the task. Newer versions have a lock of their own.
    """
    from airflow.sdk.execution_time.comms import CommsDecoder

    if hasattr(CommsDecoder, "_thread_lock"):
        return
    send, lock = CommsDecoder.send, threading.RLock()

    @functools.wraps(send)
    def one_at_a_time(self: Any, msg: Any) -> Any:
        with lock:
            return send(self, msg)

    CommsDecoder.send = one_at_a_time  # type: ignore[method-assign]


def triggers_may_ask_on_threads() -> bool:
    """Return whether a trigger may ask the supervisor (for a connection) on a thread; see the table above."""
    from airflow.sdk import __version__

    major, minor, *_ = (int(part) for part in re.findall(r"\d+", __version__))
    return (major, minor) >= (1, 3)


@dataclass(frozen=True)
class ShownQuestion:
    """A question as Airflow shows it.

    :param fields: the names of the fields of its form.
    """

    body: str
    fields: frozenset[str]


def put_question(
    ti_id: UUID, *, subject: str, body: str, options: Sequence[str], fields: Mapping[str, Mapping[str, Any]]
) -> ShownQuestion:
    """Store a question to a person, and return the one that Airflow shows.

    A task of a run has one question, which Airflow keeps over its tries: if there is one, it stays as it is, and only
    the answer to it is forgotten.

    :param fields: the form, see :class:`airflow_guard.core.doubts.Question`.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload

    # As airflow.sdk.execution_time.hitl.upsert_hitl_detail does, which keeps the answer to itself.
    stored = task_runner.SUPERVISOR_COMMS.send(
        msg=CreateHITLDetailPayload(
            ti_id=ti_id,
            options=list(options),
            subject=subject,
            body=body,
            params={name: dict(field) for name, field in fields.items()},
            assigned_users=[],
        )
    )
    return ShownQuestion(
        getattr(stored, "body", None) or "", frozenset(getattr(stored, "params", None) or ())
    )


def await_answer(
    ti_id: UUID,
    *,
    options: Sequence[str],
    fields: Mapping[str, Mapping[str, Any]],
    method_name: str,
    kwargs: dict[str, Any],
    timeout: timedelta,
) -> NoReturn:
    """End this process, and let Airflow call a method of the task with the answer as ``event``.

    :param options: as in :func:`put_question`, as ``fields``.
    :param kwargs: what the method is called with besides, JSON values.
    :param timeout: when the method is called without an answer.
    """
    try:
        from airflow.sdk.exceptions import TaskAwaitingInput
    except ImportError:  # 3.1, 3.2
        from airflow.providers.standard.triggers.hitl import HITLTrigger

        trigger = HITLTrigger(
            ti_id=ti_id,
            options=list(options),
            params={name: dict(field) for name, field in fields.items()},
            timeout_datetime=datetime.now(UTC) + timeout,
        )
        raise TaskDeferred(
            trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout + _TRIGGER_BACKSTOP
        ) from None
    raise TaskAwaitingInput(method_name=method_name, kwargs=kwargs, timeout=timeout)


def sql_check_result(**values: Any) -> Any:
    """Return one entry of ``check_results``, where Airflow's SQL checks leave their results for listeners.

    Older versions of the provider ``common.sql`` have no class for it; then it is a plain object with the same
    attributes.
    """
    try:
        from airflow.providers.common.sql.operators.sql import SQLCheckResult
    except ImportError:
        return SimpleNamespace(**values)
    return SQLCheckResult(**values)


def hostname() -> str:
    """Return this machine's name as Airflow shows it (``[core] hostname_callable``)."""
    from airflow.utils.net import get_hostname

    return str(get_hostname())  # type: ignore[no-untyped-call]


STARTED = (
    "running",
    "deferred",
    "awaiting_input",
    "success",
    "failed",
    "skipped",
    "upstream_failed",
)
"""States of task instances that have listed their documents already, or never will."""


def count_of_instances(ti: Any, states: Sequence[str] | None = None) -> int | None:
    """Return how many instances a mapped task has in this run, ``None`` if Airflow does not say.

    :param ti: one of them, at work in this process.
    :param states: only those; ``None``: all.
    """
    of_task = {"dag_id": ti.dag_id, "task_ids": [ti.task_id], "run_ids": [ti.run_id]}
    try:
        found = int(ti.get_ti_count(**of_task, **({"states": list(states)} if states else {})))
        if states:
            return found
        # What an earlier, longer mapping had is kept, and is none of its instances any more.
        return found - int(ti.get_ti_count(**of_task, states=["removed"])) or None
    except Exception:  # noqa: BLE001 - a figure for people: it keeps no task from its work
        return None


def runs_in_this_process() -> bool:
    """Return whether a task runs in the process that asked for it, as ``dag.test()`` does."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    comms = getattr(runner, "SUPERVISOR_COMMS", None)
    return type(comms).__name__ == "InProcessSupervisorComms"


def without_known_secrets(text: str) -> str:
    """Return a text without what Airflow knows to be secret in this process: of connections and variables."""
    for module in _maskers():
        text = str(module.redact(text))
    return text


@functools.cache
def _maskers() -> tuple[Any, ...]:
    """Return the maskers of tasks and of Airflow itself, which do not share what they know."""
    names = ("airflow.sdk._shared.secrets_masker", "airflow._shared.secrets_masker")
    return tuple(import_module(name) for name in names if find_spec(name) is not None)


def count_stat(name: str, by: int, tags: dict[str, str]) -> None:
    """Add to a counter of Airflow's statistics."""
    _stats().incr(name, by, tags=tags)


@functools.cache
def _stats() -> Any:
    """Return the statistics of the process that runs a task."""
    for module in (
        "airflow.sdk.observability.stats",
        "airflow.sdk.observability.metrics.stats",
        "airflow.stats",
    ):
        try:
            return import_module(module).Stats
        except (ImportError, AttributeError):
            continue
    raise ImportError("This version of Airflow has its statistics in no place that is known.")


async def user_of_request(request: Any) -> Any:
    """Return the user of Airflow who sent a request, by its token or cookie.

    What Airflow's own routes depend on, called as a function: so it can be asked before any route is looked for.

    :param request: a Starlette request.
    :raises starlette.exceptions.HTTPException: there is none (401), or the token is not valid (401, 403).
    """
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user

    # The second argument is the same header once more, for the login form of Airflow's API documentation.
    return await get_user(request, None, await bearer_scheme(request))


def is_continuous(timetable: object) -> bool:
    """Return whether a DAG's timetable is that of ``@continuous``."""
    return type(timetable).__name__ == "ContinuousTimetable"


def cron_of(timetable: object) -> tuple[str, bool] | None:
    """Return the expression of a cron timetable, and whether a run is dated by the one before it, as its data
    interval begins there. ``None`` for other timetables, also for one that gives partitions.

    3.1 has no timetables of the SDK: the scheduler's own have private names.
    """
    name = type(timetable).__name__
    expression = getattr(timetable, "expression", None) or getattr(timetable, "_expression", None)
    interval = getattr(timetable, "interval", None) or getattr(timetable, "_interval", None)
    if name == "CronDataIntervalTimetable" and isinstance(expression, str):
        return expression, True
    if name == "CronTriggerTimetable" and isinstance(expression, str) and not interval:
        return expression, False
    return None
