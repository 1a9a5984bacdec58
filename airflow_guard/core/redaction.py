"""Secrets in texts of others, such as an exception that quotes a connection string."""

from __future__ import annotations

import re

HIDDEN = "***"
MAX_CHARACTERS = 10_000
"""What comes after it is never shown: an exception may quote a whole file."""
_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|"
    r"private[_-]?key|signature|credential)[\w.-]{0,40}"
)
# What a pattern keeps is its first group; what follows it is hidden.
_PATTERNS = (
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    # Up to the last @, since a password that was not encoded may hold one.
    re.compile(r"(\b[a-z][\w+.-]{0,40}://[^:/@\s]{0,200}:)[^\s]*(?=@)", re.IGNORECASE),
    re.compile(r"(\b(?:authorization|proxy-authorization)\b[\"']?\s*[:=]\s*)[^\r\n,;]+", re.IGNORECASE),
    re.compile(r"(\b(?:bearer|basic)\s+)[A-Za-z0-9+/_.~-]{6,}=*", re.IGNORECASE),
    re.compile(rf"({_NAMES}[\"']?\s*[:=]\s*)\"(?:[^\"\\]|\\.)*(?:\"|\Z)", re.IGNORECASE),
    re.compile(rf"({_NAMES}[\"']?\s*[:=]\s*)'(?:[^'\\]|\\.)*(?:'|\Z)", re.IGNORECASE),
    re.compile(rf"({_NAMES}\s*[:=]\s*)(?![\"'\s]|\*\*\*)[^\s&;,)}}\]]+", re.IGNORECASE),
)


def described(error: BaseException) -> str:
    """Return an error with the name of its type, without secrets.

    >>> described(TimeoutError("no answer from ftp://guard:s3cret@bank"))
    'TimeoutError: no answer from ftp://guard:***@bank'
    """
    return without_secrets(f"{type(error).__name__}: {error}")


def without_secrets(text: str) -> str:
    """Return a text without what looks like a secret. Idempotent; no longer than 10,000 characters.

    >>> without_secrets("no route to postgresql://guard:s3cret@db/ledger (password=s3cret)")
    'no route to postgresql://guard:***@db/ledger (password=***)'

    It works by form. Values that Airflow knows to be secret are hidden by Airflow's own masker, before this.
    """
    text = text[:MAX_CHARACTERS]
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text
