"""The section ``[airflow_guard]`` of Airflow's configuration, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_guard.airflow_compat import conf
from airflow_guard.core.errors import ConfigurationError
from airflow_guard.core.results import MAX_RESULT_BYTES

SECTION = "airflow_guard"
LEASE_S = 60.0
PAGE_TIMEOUT_S = 1.6


@dataclass(frozen=True)
class GuardSettings:
    """What ``[airflow_guard]`` says. Each option is described in the provider's configuration reference.

    :param ledger_conn_id: connection of the ledger where an operator names none.
    :param ledger_conn_ids: connections of the ledgers that the pages in Airflow's UI show.
    :param schema: database schema of the ledger's tables, ``None`` for the connection's default.
    :param table_prefix: what their names begin with.
    :param deployment: name of this Airflow deployment.
    :param mode: ``enforce`` or ``observe`` where an operator says nothing.
    :param lease: how long others leave a key alone after the last sign of life of an attempt.
    :param page_timeout_s: how long a page in Airflow's UI waits for a ledger before it says that it does not answer.
    :param result_max_bytes: size limit of a stored result.
    """

    ledger_conn_id: str | None = None
    ledger_conn_ids: tuple[str, ...] = ()
    schema: str | None = None
    table_prefix: str = "guard_"
    deployment: str = "default"
    mode: str = "enforce"
    lease: timedelta = timedelta(seconds=LEASE_S)
    page_timeout_s: float = PAGE_TIMEOUT_S
    result_max_bytes: int = MAX_RESULT_BYTES

    @staticmethod
    def read() -> GuardSettings:
        """Return the settings as they are now.

        :raises ConfigurationError: a number is none. A retry does not help.
        """
        return GuardSettings(
            ledger_conn_id=_text("ledger_conn_id"),
            ledger_conn_ids=_names("ledger_conn_ids"),
            schema=_text("schema"),
            table_prefix=_text("table_prefix") or "guard_",
            deployment=_text("deployment") or "default",
            mode=_text("mode") or "enforce",
            lease=timedelta(seconds=_number("lease_seconds", LEASE_S)),
            page_timeout_s=_number("page_timeout_seconds", PAGE_TIMEOUT_S),
            result_max_bytes=int(_number("result_max_bytes", MAX_RESULT_BYTES)),
        )


def _text(option: str) -> str | None:
    value = conf.get(SECTION, option, fallback=None)
    return value.strip() or None if value else None


def _names(option: str) -> tuple[str, ...]:
    """Return names that are separated by commas, each once, in their order."""
    names = (name.strip() for name in (_text(option) or "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _number(option: str, default: float) -> float:
    value = _text(option)
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigurationError(f"[{SECTION}] {option} = {value}: not a number above zero.")
    return number
