"""Scheduled jobs on Apache Airflow that post, pay or notify once, however often they run.

Every name is imported when it is first used, so that ``import airflow_guard`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_guard.version import __version__

if TYPE_CHECKING:
    from airflow_guard.core.alerts.expected import ExpectedOperation as ExpectedOperation
    from airflow_guard.core.dates import business_day as business_day
    from airflow_guard.core.dates import business_month_end as business_month_end
    from airflow_guard.core.dates import from_asset_extra as from_asset_extra
    from airflow_guard.core.dates import month_end as month_end
    from airflow_guard.core.dates import previous_business_day as previous_business_day
    from airflow_guard.core.dates import previous_day as previous_day
    from airflow_guard.core.dates import same_day as same_day
    from airflow_guard.core.effects import Database as Database
    from airflow_guard.core.effects import External as External
    from airflow_guard.core.errors import AmountError as AmountError
    from airflow_guard.core.errors import BeforeHorizon as BeforeHorizon
    from airflow_guard.core.errors import BlockedError as BlockedError
    from airflow_guard.core.errors import BothEmpty as BothEmpty
    from airflow_guard.core.errors import BreaksFound as BreaksFound
    from airflow_guard.core.errors import BusinessDateError as BusinessDateError
    from airflow_guard.core.errors import CalendarError as CalendarError
    from airflow_guard.core.errors import ConfigurationError as ConfigurationError
    from airflow_guard.core.errors import ContentChanged as ContentChanged
    from airflow_guard.core.errors import DateChangedError as DateChangedError
    from airflow_guard.core.errors import DocumentError as DocumentError
    from airflow_guard.core.errors import DocumentsFailed as DocumentsFailed
    from airflow_guard.core.errors import DroppedBefore as DroppedBefore
    from airflow_guard.core.errors import DuplicateDocumentError as DuplicateDocumentError
    from airflow_guard.core.errors import DuplicateRefused as DuplicateRefused
    from airflow_guard.core.errors import FollowUpFailed as FollowUpFailed
    from airflow_guard.core.errors import Forgotten as Forgotten
    from airflow_guard.core.errors import GuardError as GuardError
    from airflow_guard.core.errors import InDoubt as InDoubt
    from airflow_guard.core.errors import InDoubtUnsettled as InDoubtUnsettled
    from airflow_guard.core.errors import InProgressElsewhere as InProgressElsewhere
    from airflow_guard.core.errors import KeyDrift as KeyDrift
    from airflow_guard.core.errors import LedgerBusy as LedgerBusy
    from airflow_guard.core.errors import LedgerError as LedgerError
    from airflow_guard.core.errors import LedgerNotConfigured as LedgerNotConfigured
    from airflow_guard.core.errors import LedgerNotMigrated as LedgerNotMigrated
    from airflow_guard.core.errors import LedgerRefused as LedgerRefused
    from airflow_guard.core.errors import LedgerUnavailable as LedgerUnavailable
    from airflow_guard.core.errors import NeverCompared as NeverCompared
    from airflow_guard.core.errors import NotExecuted as NotExecuted
    from airflow_guard.core.errors import NotGuardedThen as NotGuardedThen
    from airflow_guard.core.errors import OtherDeployment as OtherDeployment
    from airflow_guard.core.errors import OtherRun as OtherRun
    from airflow_guard.core.errors import OwnershipLost as OwnershipLost
    from airflow_guard.core.errors import ReconciliationError as ReconciliationError
    from airflow_guard.core.errors import Rejected as Rejected
    from airflow_guard.core.errors import RepeatedDocument as RepeatedDocument
    from airflow_guard.core.errors import RerunRefused as RerunRefused
    from airflow_guard.core.errors import ResolutionError as ResolutionError
    from airflow_guard.core.errors import ResultError as ResultError
    from airflow_guard.core.errors import SideInvalid as SideInvalid
    from airflow_guard.core.errors import SideUnavailable as SideUnavailable
    from airflow_guard.core.errors import StaleResolution as StaleResolution
    from airflow_guard.core.errors import Stopped as Stopped
    from airflow_guard.core.errors import TooManyRejected as TooManyRejected
    from airflow_guard.core.errors import TransactionError as TransactionError
    from airflow_guard.core.errors import UnexpectedListing as UnexpectedListing
    from airflow_guard.core.errors import UnknownCommit as UnknownCommit
    from airflow_guard.core.expectations import Expected as Expected
    from airflow_guard.decorators.typed import task as task
    from airflow_guard.notifications.callbacks import alert_on_dag_failure as alert_on_dag_failure
    from airflow_guard.notifications.callbacks import alert_on_failure as alert_on_failure
    from airflow_guard.notifications.callbacks import alert_on_recovery as alert_on_recovery
    from airflow_guard.notifications.callbacks import alert_on_retry as alert_on_retry
    from airflow_guard.notifications.callbacks import alert_on_skipped as alert_on_skipped
    from airflow_guard.notifications.callbacks import guard_defaults as guard_defaults
    from airflow_guard.notifications.guard import GuardNotifier as GuardNotifier
    from airflow_guard.notifications.watch import GuardWatchOperator as GuardWatchOperator
    from airflow_guard.operators.duplicate_check import DuplicateCheckOperator as DuplicateCheckOperator
    from airflow_guard.operators.endings import GuardFailure as GuardFailure
    from airflow_guard.operators.endings import GuardRetry as GuardRetry
    from airflow_guard.operators.endings import GuardTimeout as GuardTimeout
    from airflow_guard.operators.idempotent import IdempotentOperator as IdempotentOperator
    from airflow_guard.operators.rerun import GuardRerunOperator as GuardRerunOperator
    from airflow_guard.operators.run_context import business_date_of as business_date_of
    from airflow_guard.reconciling.sides import Side as Side
    from airflow_guard.sensors.reconciliation import ReconciliationSensor as ReconciliationSensor

_NAMES = {
    "airflow_guard.core.alerts.expected": ("ExpectedOperation",),
    "airflow_guard.core.dates": (
        "business_day",
        "business_month_end",
        "from_asset_extra",
        "month_end",
        "previous_business_day",
        "previous_day",
        "same_day",
    ),
    "airflow_guard.core.effects": ("Database", "External"),
    "airflow_guard.core.errors": (
        "AmountError",
        "BeforeHorizon",
        "BlockedError",
        "BothEmpty",
        "BreaksFound",
        "BusinessDateError",
        "CalendarError",
        "ConfigurationError",
        "ContentChanged",
        "DateChangedError",
        "DocumentError",
        "DocumentsFailed",
        "DroppedBefore",
        "DuplicateDocumentError",
        "DuplicateRefused",
        "FollowUpFailed",
        "Forgotten",
        "GuardError",
        "InDoubt",
        "InDoubtUnsettled",
        "InProgressElsewhere",
        "KeyDrift",
        "LedgerBusy",
        "LedgerError",
        "LedgerNotConfigured",
        "LedgerNotMigrated",
        "LedgerRefused",
        "LedgerUnavailable",
        "NeverCompared",
        "NotExecuted",
        "NotGuardedThen",
        "OtherDeployment",
        "OtherRun",
        "OwnershipLost",
        "ReconciliationError",
        "Rejected",
        "RepeatedDocument",
        "RerunRefused",
        "ResolutionError",
        "ResultError",
        "SideInvalid",
        "SideUnavailable",
        "StaleResolution",
        "Stopped",
        "TooManyRejected",
        "TransactionError",
        "UnexpectedListing",
        "UnknownCommit",
    ),
    "airflow_guard.core.expectations": ("Expected",),
    "airflow_guard.reconciling.sides": ("Side",),
    "airflow_guard.decorators.typed": ("task",),
    "airflow_guard.notifications.callbacks": (
        "alert_on_dag_failure",
        "alert_on_failure",
        "alert_on_recovery",
        "alert_on_retry",
        "alert_on_skipped",
        "guard_defaults",
    ),
    "airflow_guard.notifications.guard": ("GuardNotifier",),
    "airflow_guard.notifications.watch": ("GuardWatchOperator",),
    "airflow_guard.operators.duplicate_check": ("DuplicateCheckOperator",),
    "airflow_guard.operators.endings": ("GuardFailure", "GuardRetry", "GuardTimeout"),
    "airflow_guard.operators.idempotent": ("IdempotentOperator",),
    "airflow_guard.operators.rerun": ("GuardRerunOperator",),
    "airflow_guard.operators.run_context": ("business_date_of",),
    "airflow_guard.sensors.reconciliation": ("ReconciliationSensor",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604 - one list, not two that drift apart


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
