"""What a task's function pushes to XCom and gives to its outlet events: noted apart for each call, so that a replay gives
it again. A part of ``airflow_compat``: Airflow has one set of events for a task, and no public way to tell which call
has changed what."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import attrs
from airflow.sdk.definitions.asset import AssetAliasEvent, AssetAliasUniqueKey, AssetUniqueKey
from airflow.sdk.execution_time.callback_runner import create_executable_runner
from airflow.sdk.execution_time.context import (
    OutletEventAccessor,
    OutletEventAccessors,
    context_get_outlet_events,
)

from airflow_guard.execution.pushing import Call, Recorder

try:
    from airflow.sdk.serde import deserialize, serialize
except ImportError:  # 3.1
    from airflow.serialization.serde import deserialize, serialize  # type: ignore[no-redef, import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping
    from types import TracebackType

    from airflow.sdk import Context

    from airflow_guard.core.results import Pushes

Events = dict[Any, OutletEventAccessor]
_PUSH, _PUSH_LATER = "xcom_push", "axcom_push"


def outlet_events_of(context: Context) -> Any:
    """Return the accessor of the asset events that a task will emit; its items have ``extra``."""
    return context_get_outlet_events(context)


def call_as_airflow(function: Callable[..., Any], outlet_events: Any, logger: Any) -> Callable[..., Any]:
    """Return what calls a function as ``PythonOperator`` does: what a generator yields goes to the asset
    events.

    :param outlet_events: see :func:`outlet_events_of`.
    """
    return create_executable_runner(function, outlet_events, logger=logger).run


def to_xcom(value: Any) -> Any:
    """Return a value as Airflow stores it in an XCom: a JSON value that says its type."""
    return serialize(value)


def from_xcom(stored: Any) -> Any:
    """Return the value again."""
    return deserialize(stored)


class EventsOfCalls(OutletEventAccessors):
    """What a task has as ``outlet_events``: inside a call its own copy, otherwise the task's.

    :param given: the task's.
    :param of_call: gives the copy of the call that asks, ``None`` outside of one.
    """

    def __init__(self, given: OutletEventAccessors, of_call: Callable[[], Events | None]) -> None:
        self._given = given
        self._of_call = of_call

    @property
    def _dict(self) -> Events:  # type: ignore[override]
        own = self._of_call()
        return self._given._dict if own is None else own  # noqa: SLF001 - there is no public way

    def of_task(self) -> Events:
        """Return those of the task."""
        return self._given._dict  # noqa: SLF001 - as above


def copied(events: Mapping[Any, OutletEventAccessor]) -> Events:
    """Return a copy that a call may change."""
    return {key: copy.deepcopy(accessor) for key, accessor in events.items()}


def changes(
    before: Mapping[Any, OutletEventAccessor], after: Mapping[Any, OutletEventAccessor]
) -> list[dict[str, Any]]:
    """Return what a call has changed, as :func:`apply` takes it: JSON values, if the extras are."""
    found = []
    for key, accessor in after.items():
        old = before.get(key) or OutletEventAccessor(key=key)
        extra, old_extra = accessor.extra, old.extra
        change = {
            "set": {
                name: value
                for name, value in extra.items()
                if name not in old_extra or old_extra[name] != value
            },
            "gone": [name for name in old_extra if name not in extra],
            "added": [
                attrs.asdict(event) for event in accessor.asset_alias_events[len(old.asset_alias_events) :]
            ],
            "partitions": sorted(
                getattr(accessor, "partition_keys", set()) - getattr(old, "partition_keys", set())
            ),
        }
        kept = {name: value for name, value in change.items() if value}
        if kept:
            named = {"alias": key.name} if isinstance(key, AssetAliasUniqueKey) else attrs.asdict(key)
            found.append({**named, **kept})
    return found


def apply(events: MutableMapping[Any, OutletEventAccessor], changed: Iterable[Mapping[str, Any]]) -> None:
    """Change the events of a task as a call has done before."""
    names = {field.name for field in attrs.fields(AssetAliasEvent)}
    for change in changed:
        alias = change.get("alias")
        key: Any = AssetAliasUniqueKey(alias) if alias else AssetUniqueKey(change["name"], change["uri"])
        accessor = events.setdefault(key, OutletEventAccessor(key=key))
        for name in change.get("gone", ()):
            accessor.extra.pop(name, None)
        accessor.extra.update(change.get("set", {}))
        for known in change.get("added", ()):
            values = {name: value for name, value in known.items() if name in names}
            values["dest_asset_key"] = AssetUniqueKey(**known["dest_asset_key"])
            accessor.asset_alias_events.append(AssetAliasEvent(**values))
        if change.get("partitions"):
            accessor.partition_keys.update(change["partitions"])


class TaskRecorder(Recorder):
    """A :class:`Recorder` of a task try. While it is entered, the task instance of the context notes what it pushes.

    :param context: Airflow's; its ``outlet_events`` are replaced by ones that are apart for each call.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._ti: Any = context["ti"]
        self._push = self._ti.xcom_push
        given = outlet_events_of(context)
        self._events = EventsOfCalls(given, self._events_of_call)
        self._so_far: Events | None = None
        context["outlet_events"] = self._events

    def __enter__(self) -> Self:
        # Into the instance itself: its class is Airflow's, and refuses attributes that it does not know.
        vars(self._ti)[_PUSH] = self.push
        if hasattr(type(self._ti), _PUSH_LATER):
            vars(self._ti)[_PUSH_LATER] = self._push_later
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in (_PUSH, _PUSH_LATER):
            vars(self._ti).pop(name, None)

    async def _push_later(self, key: str, value: Any) -> None:
        self.push(key, value)

    def _give(self, key: str, value: Any) -> None:
        self._push(key=key, value=value)

    def _as_stored(self, value: Any) -> Any:
        return to_xcom(value)

    def _from_stored(self, value: Any) -> Any:
        return from_xcom(value)

    # -- outlet events --------------------------------------------------------------------------------------

    def _events_of_call(self) -> Events | None:
        call = self.running()
        if call is None:
            return None
        if call.events is None:
            with self._lock:
                if self._so_far is None:
                    self._so_far = copied(self._events.of_task())
                call.events, call.events_before = copied(self._so_far), copied(self._so_far)
        events: Events = call.events
        return events

    def _end_events(self, call: Call) -> None:
        found = changes(call.events_before, call.events)
        call.pushes.events = [*call.pushes.events, *found]
        with self._lock:
            if self._so_far is not None:
                apply(self._so_far, found)

    def _give_events(self, calls: list[Pushes]) -> None:
        for call in calls:
            apply(self._events.of_task(), call.events)
