"""A small disk for the ledger, which can be filled: a tmpfs in a mount namespace of the rig's own.

It needs root. The namespace, and with it the disk, is gone when the rig and its children are.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from demo.postgres import EmbeddedPostgres

_NEW_NAMESPACE = 0x00020000
_PRIVATE = 0x40000 | 0x4000  # MS_PRIVATE | MS_REC
_LAZY = 2  # MNT_DETACH
_SIZE = "1500m"
_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A folder on a disk of its own."""

    folder: Path

    @classmethod
    def mounted(cls, folder: Path) -> SmallDisk | None:
        """Mount one; ``None`` where that is not permitted."""
        folder.mkdir(exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        if os.geteuid() != 0 or not hasattr(libc, "unshare") or libc.unshare(_NEW_NAMESPACE) != 0:
            return None
        libc.mount(b"none", b"/", None, _PRIVATE, None)
        options = f"size={_SIZE},mode=755".encode()
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options) != 0:
            return None
        return cls(folder)

    def give_to(self, server: EmbeddedPostgres) -> None:
        """Let a server keep new databases there."""
        import psycopg

        space = self.folder / "space"
        space.mkdir()
        account = pwd.getpwnam("nobody")
        os.chown(space, account.pw_uid, account.pw_gid)
        with psycopg.connect(
            host=str(server.socket_dir), port=server.port, user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
            connection.execute("ALTER SYSTEM SET default_tablespace = 'small'")
            connection.execute("SELECT pg_reload_conf()")

    def unmount(self) -> None:
        """Take it away, with all that is on it."""
        ctypes.CDLL(None).umount2(os.fsencode(self.folder), _LAZY)

    def fill(self) -> None:
        """Leave no room on it."""
        with (self.folder / "balloon").open("wb", buffering=0) as balloon:
            step = _STEP
            while step:
                try:
                    balloon.write(b"\0" * step)
                except OSError:
                    step //= 2

    def empty(self) -> None:
        """Give the room back."""
        (self.folder / "balloon").unlink(missing_ok=True)
