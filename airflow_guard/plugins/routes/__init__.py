"""What the pages show. Each module has a router; none has SQL: they ask the read model of :mod:`airflow_guard.store`."""

from airflow_guard.plugins.routes import changes, days, downloads, keys, lists, start, tabs

ROUTERS = (
    start.router,
    days.router,
    keys.router,
    lists.router,
    tabs.router,
    downloads.router,
    changes.router,
)
