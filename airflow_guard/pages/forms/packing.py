"""What a preview was about, packed into its confirmation, so that no server has to keep it."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING

from airflow_guard.core.errors import ResolutionError
from airflow_guard.pages.forms.posted import MAX_UPLOAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable


def packed(chunks: Iterable[bytes]) -> str:
    """Return bytes as the text of a hidden field.

    :raises ResolutionError: they are too many.
    """
    packing, parts, size = zlib.compressobj(), [], 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_UPLOAD_BYTES:
            raise ResolutionError(
                f"That is larger than {MAX_UPLOAD_BYTES:,} bytes, which is all that a page takes. Do it in parts, or with the "
                "command airflow-guard, which has no limit."
            )
        parts.append(packing.compress(chunk))
    parts.append(packing.flush())
    return base64.b64encode(b"".join(parts)).decode()


def unpacked(text: str) -> bytes:
    """Return the bytes of a hidden field.

    :raises ResolutionError: it has not arrived whole.
    """
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MAX_UPLOAD_BYTES + 1)
    except (zlib.error, binascii.Error) as error:
        raise ResolutionError("The form has not arrived whole. Open it again.") from error
