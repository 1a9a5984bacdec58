"""What a DAG file declares about a guarded task, checked when the DAG is parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from airflow_guard.airflow_compat import XComArg
from airflow_guard.core.effects import External, side_effect_of
from airflow_guard.core.errors import BusinessDateError, ConfigurationError
from airflow_guard.core.keys import KeySpace, cycle_text
from airflow_guard.core.parameters import duration
from airflow_guard.core.run_facts import parse_business_date
from airflow_guard.execution.spec import Callee, GuardSpec
from airflow_guard.hooks.ledger import ledger_conn_id
from airflow_guard.operators.business_date import refuse_uncalled_rule
from airflow_guard.operators.calling import GIVEN_TO_ALL, Function

if TYPE_CHECKING:
    from airflow_guard.hooks.settings import GuardSettings

_MADE_BY_AIRFLOW = re.compile(r"\.|__\d+$")
_PLAIN = (
    "once_per",
    "call_per",
    "batch_size",
    "document_key",
    "on_duplicate",
    "on_concurrent",
    "on_other_run",
    "expected",
    "on_empty",
    "on_repeated",
    "stop_on_failure",
    "max_rejected",
    "max_workers",
)
NOT_BY_DEFAULT_ARGS = (
    "operation",
    "document",
    "documents",
    "document_key",
    "fingerprint_fields",
    "python_callable",
    "retired_operations",
    "expected",
)
"""What makes a task this task and no other: in ``default_args`` it would be shared by all, or was meant for
an operator of another kind."""


@dataclass(frozen=True)
class Declaration:
    """The parameters of one guarded task.

    :param task_id: as the DAG has it, with the prefix of its group.
    :param dag_id: ``None`` if the task has no DAG yet.
    :param values: parameters by name, those of ``default_args`` included.
    :param mapped: names that the task is mapped over: only the run will tell their values.
    :param perhaps: names that may be given all the same: by what the run maps over, or by a subclass.
    :param is_mapped: whether there are several instances of the task.
    """

    task_id: str
    dag_id: str | None
    values: Mapping[str, Any]
    mapped: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()
    is_mapped: bool = False

    def check(self, settings: GuardSettings) -> GuardSpec:
        """Refuse what cannot work, and return the rules.

        :raises ConfigurationError: says what to change.
        """
        spec = spec_of(self.values, settings)
        ledger_conn_id(self.values.get("ledger_conn_id"), settings)
        refuse_uncalled_rule(self.values.get("business_date"))
        self._check_key(spec, settings)
        self._check_documents(spec)
        self._check_functions(spec)
        duration("wait_timeout", self.values.get("wait_timeout", 1))
        duration("poll_interval", self.values.get("poll_interval", 1))
        return spec

    @property
    def key(self) -> tuple[str | None, str | None, str | None]:
        """Key namespace, operation and cycle; ``None`` where only the run will tell."""
        namespace = self.values.get("key_namespace") or self.dag_id
        operation = None if "operation" in self.perhaps else self.operation
        return namespace, operation, self._cycle

    @property
    def _cycle(self) -> str | None:
        try:
            return None if self._may_be_mapped("cycle") else cycle_text(self.values.get("cycle"))
        except ConfigurationError:
            return None  # an XComArg: only the run will tell

    @property
    def operation(self) -> str:
        """The operation, by default the task's id."""
        return self.values.get("operation") or self.task_id

    def _check_key(self, spec: GuardSpec, settings: GuardSettings) -> None:
        for name in ("document", "cycle"):
            value = self.values.get(name)
            if name not in self.mapped and callable(value) and not isinstance(value, XComArg):
                raise ConfigurationError(
                    f"{name}={value!r:.80} is a function, which nobody calls. Give a text, a template or the result of "
                    "another task."
                )
        for name in ("operation", "key_namespace"):
            value = self.values.get(name)
            if name in self.mapped or (value is not None and (not isinstance(value, str) or "{{" in value)):
                raise ConfigurationError(not_mapped(name, value))
        if self._given("operation") is False and _MADE_BY_AIRFLOW.search(self.task_id):
            raise ConfigurationError(
                f"Task {self.task_id!r} needs operation=…: its id depends on the task group it is in, or on "
                "how often its function was called before it, and the operation is part of the key. If you "
                'move or reorder tasks, an operation such as operation="post_statement" stays.'
            )
        cycle = self._cycle
        fixed = cycle if cycle and "{{" not in cycle else ""
        KeySpace(
            self.values.get("key_namespace") or self.dag_id or "dag",
            self.operation,
            date(2000, 1, 1),
            fixed,
            spec.once_per,
            settings.deployment,
        )
        if (cycle or self.values.get("cycle")) and spec.once_per == "document":
            raise ConfigurationError('once_per="document" holds whatever the cycle: leave out cycle.')

    def _check_documents(self, spec: GuardSpec) -> None:
        document, documents = self._given("document"), self._given("documents")
        if document and documents:
            raise ConfigurationError(
                "document and documents are both given: one task lists one document, or many."
            )
        if documents and "documents" in self.values:
            _check_listing(self.values["documents"])
        if document and self.values.get("expected") is not None:
            raise ConfigurationError(
                "expected is about the listing of documents=…; document=… names one document, which is always there."
            )
        self._check_document_key()
        if spec.call_per == "batch" and documents is False:
            raise ConfigurationError('call_per="batch" needs documents=…: the list that is cut into batches.')
        if document is False and documents is False:
            self._check_whole_run(spec)

    def _check_document_key(self) -> None:
        """Refuse mappings in the DAG file whose identity nobody names; of others only the run can tell."""
        if self.values.get("document_key") or self._may_be_mapped("document_key"):
            return
        listed = self.values.get("documents")
        literal = [*(listed if isinstance(listed, (list, tuple)) else ()), self.values.get("document")]
        item = next((each for each in literal if isinstance(each, Mapping)), None)
        if item is not None:
            raise ConfigurationError(
                f"A document of task {self.task_id!r} is a mapping, and document_key does not say which of its fields is "
                f"the identity (fields: {', '.join(map(str, list(item)[:12]))}). Set document_key=…"
            )

    def _check_whole_run(self, spec: GuardSpec) -> None:
        if self.is_mapped:
            raise ConfigurationError(without_document(self.task_id))
        needing = [
            name
            for name in ("document_key", "fingerprint_fields", "expected")
            if self.values.get(name) is not None
        ]
        needing += ['once_per="document"'] if spec.once_per == "document" else []
        if needing:
            raise ConfigurationError(
                f"{', '.join(needing)} of task {self.task_id!r} means nothing without document=… or "
                "documents=…: the task would stand for the run as a whole."
            )
        wanted = Function.of("python_callable", self.values["python_callable"], self._args() or ()).required
        if wanted & {"document", "payload"}:
            raise ConfigurationError(
                f"The callable of task {self.task_id!r} takes "
                f"{' and '.join(sorted(wanted & {'document', 'payload'}))}, but neither document=… nor "
                "documents=… is given."
            )

    def _check_functions(self, spec: GuardSpec) -> None:
        if "python_callable" not in self.values:  # a subclass brings it
            return
        known, args = self._known_arguments(), self._args()
        function = Function.of("python_callable", self.values["python_callable"], args or ())
        function.check_arguments(None if args is None else known)
        Callee(lambda _: None, function.names, function.any_name).check(spec)
        if spec.database and function.is_async:
            raise ConfigurationError(
                'side_effect="database" needs an ordinary function: connection is synchronous, and a '
                "coroutine would block its event loop with each statement. Use def instead of async def."
            )
        if isinstance(spec.side_effect, External) and spec.side_effect.verify is not None:
            Function.of("External(verify=…)", spec.side_effect.verify).check_arguments(known)
        if spec.side_effect.on_rerun is not None:
            Function.of("on_rerun", spec.side_effect.on_rerun).check_arguments(known)
        documents = self.values.get("documents")
        if callable(documents) and not isinstance(documents, XComArg):
            Function.of("documents", documents).check_arguments(known, GIVEN_TO_ALL)
        for name, each in expecting_functions(spec.expected):
            Function.of(name, each).check_arguments(known, GIVEN_TO_ALL)

    def _args(self) -> tuple[Any, ...] | None:
        """Return the ``op_args``, ``None`` if only the run will tell how many there are."""
        args = self.values.get("op_args") or ()
        if self._may_be_mapped("op_args") or not isinstance(args, (list, tuple)):
            return None
        return tuple(args)

    def _known_arguments(self) -> frozenset[str] | None:
        arguments = self.values.get("op_kwargs") or {}
        if self._may_be_mapped("op_kwargs") or not isinstance(arguments, Mapping):
            return None
        return frozenset(arguments)

    def _given(self, name: str) -> bool | None:
        """Return whether a parameter is given, ``None`` if only the run will tell."""
        if self.values.get(name) is not None or name in self.mapped:
            return True
        return None if name in self.perhaps else False

    def _may_be_mapped(self, name: str) -> bool:
        return name in self.mapped or name in self.perhaps


def spec_of(values: Mapping[str, Any], settings: GuardSettings) -> GuardSpec:
    """Return the rules that parameters declare; what they leave out has the default, or the configured value.

    :raises ConfigurationError: a value or combination that cannot work.
    """
    rules: dict[str, Any] = {name: values[name] for name in _PLAIN if name in values}
    rules["mode"] = values.get("mode") or settings.mode
    lease, max_hold = values.get("lease"), values.get("max_hold")
    if max_hold is not None:
        rules["max_hold"] = duration("max_hold", max_hold)
    fields = values.get("fingerprint_fields")
    return GuardSpec(
        **rules,
        side_effect=side_effect_of(values.get("side_effect", "external")),
        fingerprint_fields=None if fields is None else _names("fingerprint_fields", fields),
        retired_operations=_names("retired_operations", values.get("retired_operations") or ()),
        guarded_from=_day("guarded_from", values.get("guarded_from")),
        lease=settings.lease if lease is None else duration("lease", lease),
        result_max_bytes=settings.result_max_bytes,
        ledger=values.get("ledger_conn_id"),
    )


def expecting_functions(expected: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of ``expected=…``, each with what messages call it."""
    if callable(expected):
        yield "expected", expected
    elif expected is not None and callable(expected.total):
        yield "Expected(total=…)", expected.total


def not_mapped(name: str, value: object) -> str:
    """Return the message for a part of the key that is templated or mapped."""
    given = "" if value is None else f"={value!r}"
    return (
        f"{name}{given}: a fixed text. It is part of the key, and neither templated nor mapped. Give it to the task, or "
        "to partial(); what differs between documents belongs into document or cycle."
    )


def without_document(task_id: str) -> str:
    """Return the message for a mapped instance that names no document: all of them would have one key."""
    return (
        f"Task {task_id!r} is mapped, and an instance of it names no document: all instances would have the "
        "same key. Map over document, or give documents (a list, or a callable that takes what is mapped "
        "from op_kwargs)."
    )


def refuse_leaked(default_args: Mapping[str, Any], given: Iterable[str]) -> None:
    """Refuse what reaches the task through ``default_args`` and must not.

    :param given: what the task was given itself.
    :raises ConfigurationError: names the parameters.
    """
    leaked = [name for name in NOT_BY_DEFAULT_ARGS if name in default_args and name not in set(given)]
    if leaked:
        raise ConfigurationError(
            f"{', '.join(leaked)} of a guarded task would come from default_args, which other tasks share "
            "and which may mean another operator. Give it to the task itself, or take it out of default_args."
        )


def _check_listing(documents: object) -> None:
    if isinstance(documents, str) and "{{" in documents:
        return
    if isinstance(documents, (str, bytes, Mapping)):
        raise ConfigurationError(
            f"documents={documents!r:.80} is {type(documents).__name__}: give a list, the result of another "
            "task, or a callable. For one document use document=…."
        )
    if hasattr(documents, "__next__"):
        raise ConfigurationError(
            "documents is a generator, which gives its documents once and then never again. Give the "
            "function that makes it."
        )


def _names(parameter: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{parameter}={value!r}: a list of names.")
    names = tuple(value)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"{parameter}={value!r}: a list of names.")
    return names


def _day(parameter: str, value: object) -> date | None:
    if value is None:
        return None
    try:
        return parse_business_date(value, source=parameter)
    except BusinessDateError as error:
        raise ConfigurationError(str(error)) from error
