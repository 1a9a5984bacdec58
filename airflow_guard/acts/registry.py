"""All acts: what the modules of this folder declare."""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

import airflow_guard.acts as folder

if TYPE_CHECKING:
    from airflow_guard.acts.act import Act


@functools.cache
def acts() -> list[Act[Any, Any]]:
    """Return the acts in the order in which they are listed: whatever a module names in ``ACTS``."""
    names = [each.name for each in pkgutil.iter_modules(folder.__path__)]
    modules = [import_module(f"{folder.__name__}.{name}") for name in names]
    found = [act for module in modules for act in getattr(module, "ACTS", ())]
    return sorted(found, key=lambda act: act.place)
