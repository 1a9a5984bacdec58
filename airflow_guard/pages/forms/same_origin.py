"""Whether a request comes from these pages and not from another site that the user has open."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_guard.airflow_compat import conf

if TYPE_CHECKING:
    from starlette.requests import Request


def is_same_origin(request: Request) -> bool:
    """Return whether a browser says that its own page of this origin sent the request; silence is a no.

    ``Sec-Fetch-Site`` where the browser has it, else ``Origin``, compared with the address that Airflow is known by and
    with the one that was asked. A proxy in front may have another scheme, so only host and port count there.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    if not origin or origin == "null":
        return False
    configured = str(conf.get("api", "base_url", fallback="") or "")
    hosts = {urlsplit(configured).netloc.lower(), request.headers.get("host", "").lower()} - {""}
    return urlsplit(origin).netloc.lower() in hosts
