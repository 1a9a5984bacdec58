"""The contract once more on a ledger that is partitioned: its statements, races, resolutions, renames and purges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.contract import (
    test_business_transaction,
    test_ledger,
    test_ledger_races,
    test_purge,
    test_rename,
    test_resolution,
)
from tests.databases import PARTITIONED, databases

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = databases(PARTITIONED)


def _on_every_kind(module: ModuleType) -> dict[str, Any]:
    """Return the tests of a module that are for every kind of database, and the fixtures that they use."""
    prefix = module.__name__.rpartition(".test_")[2]
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("test_") and callable(value):
            marks = {mark.name for mark in getattr(value, "pytestmark", [])}
            if "databases" not in marks:
                found[f"test_{prefix}_{name.removeprefix('test_')}"] = value
        elif type(value).__name__ == "FixtureFunctionDefinition":
            found[name] = value
    return found


for _module in (
    test_business_transaction,
    test_ledger,
    test_ledger_races,
    test_purge,
    test_rename,
    test_resolution,
):
    globals().update(_on_every_kind(_module))
