"""Who asks, and which DAGs that person may read and edit: Airflow's own auth manager decides.

Airflow mounts the app of a plugin without any authentication, so everything here is asked for by the app itself (see
:mod:`airflow_guard.plugins.gate`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from airflow_guard.airflow_compat import user_of_request

if TYPE_CHECKING:
    from starlette.requests import Request

CALLER = "airflow_guard.caller"
"""Where the gate leaves the caller in the scope of a request."""


class Denied(Exception):
    """The request is refused, before anything of it was looked at.

    :param status: 401 if nobody is logged in, else 403.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Caller:
    """The user who asks.

    :param user: Airflow's user object.
    """

    def __init__(self, user: Any) -> None:
        self._user = user

    @property
    def name(self) -> str:
        """The name that the ledger stores as the actor."""
        return str(self._user.get_name())

    @property
    def id(self) -> str:
        """What tells this user from every other one."""
        return str(self._user.get_id())

    @functools.cached_property
    def readable(self) -> frozenset[str]:
        """The ids of the DAGs that the user may read."""
        return self._authorized("GET")

    @functools.cached_property
    def editable(self) -> frozenset[str]:
        """The ids of the DAGs that the user may edit."""
        return self._authorized("PUT")

    def _authorized(self, method: Any) -> frozenset[str]:
        from airflow.api_fastapi.app import get_auth_manager

        return frozenset(get_auth_manager().get_authorized_dag_ids(user=self._user, method=method))

    def may_see_plugins(self) -> bool:
        """Whether Airflow shows plugins to this user at all."""
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import AccessView

        return bool(get_auth_manager().is_authorized_view(access_view=AccessView.PLUGINS, user=self._user))


async def caller_of(request: Request) -> Caller:
    """Return who asks.

    :raises Denied: nobody is logged in, the token is no good, or the user may not see plugins.
    """
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException

    try:
        user = await user_of_request(request)
    except HTTPException as error:
        status = 401 if error.status_code == 401 else 403
        raise Denied(status, "Log in to Airflow to see this page.") from error
    if user is None:
        raise Denied(401, "Log in to Airflow to see this page.")
    caller = Caller(user)
    if not await run_in_threadpool(caller.may_see_plugins):
        raise Denied(
            403,
            "You have no access to this page: in Airflow you may not see plugins. An administrator of Airflow can change "
            "that.",
        )
    return caller


def known_dags() -> frozenset[str]:
    """Return the ids of all DAGs of this Airflow, whoever may see them."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return frozenset(session.scalars(select(DagModel.dag_id)))
