"""What the pages show. Each module has a router; none has SQL: they ask the read model of :mod:`airflow_guard.store`."""

from airflow_guard.pages.routes import details, downloads, lists, start, tabs

ROUTERS = (start.router, details.router, lists.router, tabs.router, downloads.router)
