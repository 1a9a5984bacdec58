"""What a task's function pushes to XCom and gives to its outlet events, so that a replay gives it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from airflow_guard.airflow_compat import outlet_events_of
from airflow_guard.airflow_pushes import EventsOfCalls, apply, changes, copied, from_xcom, to_xcom
from airflow_guard.execution.pushing import Call, Recorder

if TYPE_CHECKING:
    from types import TracebackType

    from airflow.sdk import Context

    from airflow_guard.airflow_pushes import Events
    from airflow_guard.core.results import Pushes

_PUSH, _PUSH_LATER = "xcom_push", "axcom_push"


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
