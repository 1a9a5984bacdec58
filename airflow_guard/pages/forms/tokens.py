"""What a form carries so that only this user can send it, about what this user saw.

The login cookie comes with every request, also with one that another site makes the browser send. So a form carries a
token as well: a keyed digest of the user, the form and the version of the row that was shown.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING

from airflow_guard.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

LASTS_S = 8 * 3600
"""A form that was left open over a working day has to be opened again."""


class TokenRefused(Exception):
    """A form's token is missing, forged, of another user or form, or too old."""


class Tokens:
    """Issues and checks the tokens of forms.

    :param secret: the same on every API server.
    :param now: seconds since the epoch; a token lasts ``LASTS_S``.
    """

    def __init__(self, secret: bytes, *, now: Callable[[], float] = time.time) -> None:
        if not secret:
            raise ConfigurationError(
                "Forms need [api] secret_key in Airflow's configuration, the same on every API server."
            )
        self._key = hmac.digest(secret, b"airflow_guard forms", "sha256")
        self._now = now

    def issue(self, user: str, form: str, version: str) -> str:
        """Return a token.

        :param user: id of the user who sees the form.
        :param form: its name.
        :param version: what tells the state of the row that is shown from every later one.
        """
        until, nonce = str(int(self._now()) + LASTS_S), secrets.token_hex(8)
        return f"{until}.{nonce}.{self._digest(user, form, version, until, nonce)}"

    def check(self, token: str, user: str, form: str, version: str) -> None:
        """Do nothing if a token was issued for just this.

        :raises TokenRefused: it was not.
        """
        until, _, rest = token.partition(".")
        nonce, _, digest = rest.partition(".")
        expected = self._digest(user, form, version, until, nonce)
        if not hmac.compare_digest(digest.encode(), expected.encode()):
            raise TokenRefused
        # Only now: before, it is whatever somebody wrote.
        if int(until) < self._now():
            raise TokenRefused

    def _digest(self, *parts: str) -> str:
        message = b"".join(
            b"%d:%b" % (len(data), data) for data in (part.encode("utf-8", "replace") for part in parts)
        )
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()


def configured_tokens() -> Tokens:
    """Return what issues the tokens of this Airflow.

    :raises ConfigurationError: it has no secret key.
    """
    from airflow_guard.airflow_compat import conf

    return Tokens(str(conf.get("api", "secret_key", fallback="") or "").encode())
