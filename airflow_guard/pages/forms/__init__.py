"""What the pages change: a form, a preview, a confirmation. The changes are those of the command line.

Each form is a module with a router: ``GET`` shows it, ``POST`` with ``step=preview`` makes a dry run, ``POST`` with
``step=confirm`` does it and says so. All go through :func:`~airflow_guard.pages.forms.posted.posted` (same origin, not
too large), a token (this user, this form, what the user saw) and a permission: to edit the DAG
(:func:`~airflow_guard.pages.forms.posted.require_edit`), or all that are concerned
(:mod:`airflow_guard.pages.forms.permission`).
"""

from airflow_guard.pages.forms import (
    adopt,
    breaks,
    drop,
    fail_over,
    purge,
    rename,
    rerun,
    resolve,
    reversal,
    settle,
    withdraw,
)

ROUTERS = tuple(
    each.router
    for each in (resolve, settle, drop, breaks, rerun, reversal, withdraw, adopt, rename, purge, fail_over)
)
