"""What the pages change: a form, a preview, a confirmation. The changes are those of the command line.

There is one route (:mod:`airflow_guard.pages.forms.route`) for all :mod:`~airflow_guard.acts`: ``GET`` shows the form,
``POST`` with ``step=preview`` makes a dry run, ``POST`` with ``step=confirm`` does it and says so. All that is sent comes
from the same origin and is not too large (``posted``), has a token (``sealing``: this user, this act, what the user saw),
and is from who may (``person``).
"""
