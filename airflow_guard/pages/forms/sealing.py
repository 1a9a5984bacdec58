"""What a form carries so that only this user can send it, about what this user saw.

The login cookie comes with every request, also with one that another site makes the browser send. So a form carries a
token as well, signed for the user, the act and what was shown: its object, its fields and its preview.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from typing import TYPE_CHECKING, Any

from itsdangerous import BadData, TimestampSigner, URLSafeSerializer, URLSafeTimedSerializer

from airflow_guard.core.errors import ConfigurationError, ResolutionError

if TYPE_CHECKING:
    from collections.abc import Callable

LASTS_S = 8 * 3600
"""A form that was left open over a working day has to be opened again."""
_HOW = {"key_derivation": "hmac", "digest_method": hashlib.sha256}


class TokenRefused(Exception):
    """A form's token is missing, forged, of another user or form, or too old."""


class Tokens:
    """Issues and checks the tokens of forms, and packs what a confirmation carries.

    :param secret: the same on every API server.
    :param now: seconds since the epoch; a token lasts ``LASTS_S``.
    """

    def __init__(self, secret: bytes, *, now: Callable[[], float] = time.time) -> None:
        if not secret:
            raise ConfigurationError(
                "Forms need [api] secret_key in Airflow's configuration, the same on every API server."
            )

        class Clocked(TimestampSigner):
            def get_timestamp(self) -> int:
                return int(now())

        self._signing = URLSafeTimedSerializer(
            secret, salt=b"airflow_guard forms", signer=Clocked, signer_kwargs=_HOW
        )
        self._packing = URLSafeSerializer(secret, salt=b"airflow_guard carried", signer_kwargs=_HOW)

    def issue(self, user: str, form: str, version: str) -> str:
        """Return a token.

        :param user: id of the user who sees the form.
        :param form: its name.
        :param version: what tells what is shown from everything else.
        """
        return str(self._signing.dumps([digest(user, form, version), secrets.token_hex(8)]))

    def check(self, token: str, user: str, form: str, version: str) -> None:
        """Do nothing if a token was issued for just this.

        :raises TokenRefused: it was not.
        """
        try:
            bound, _ = self._signing.loads(token, max_age=LASTS_S)
        except BadData as error:
            raise TokenRefused from error
        if not secrets.compare_digest(bound, digest(user, form, version)):
            raise TokenRefused

    def pack(self, value: Any) -> str:
        """Return JSON values as the text of a hidden field, so that no server has to keep them."""
        return str(self._packing.dumps(value))

    def unpack(self, text: str) -> Any:
        """Return what was packed.

        :raises ResolutionError: it has not arrived whole.
        """
        try:
            return self._packing.loads(text)
        except BadData as error:
            raise ResolutionError("The form has not arrived whole. Open it again.") from error


def configured_tokens() -> Tokens:
    """Return what issues the tokens of this Airflow.

    :raises ConfigurationError: it has no secret key.
    """
    from airflow_guard.airflow_compat import conf

    return Tokens(str(conf.get("api", "secret_key", fallback="") or "").encode())


def digest(*parts: Any) -> str:
    """Return 32 hex characters that stand for plain values."""
    text = json.dumps(parts, default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
