"""What a task pushes: XComs as they are stored, and the asset events that it will emit, apart for each call of its
function. A part of ``airflow_compat``: Airflow has one set of events for a task, and no public way to tell which call
has changed what."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import attrs
from airflow.sdk.definitions.asset import AssetAliasEvent, AssetAliasUniqueKey, AssetUniqueKey
from airflow.sdk.execution_time.context import OutletEventAccessor, OutletEventAccessors

try:
    from airflow.sdk.serde import deserialize, serialize
except ImportError:  # 3.1
    from airflow.serialization.serde import deserialize, serialize  # type: ignore[no-redef, import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

Events = dict[Any, OutletEventAccessor]


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
