"""One process per folder: a lock that the system lifts when its holder dies, however it dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recollect.errors import UserError
from recollect.storage.files import open_unlinked, refuse_links

LOCK_NAME = "lock"


class LockedError(UserError):
    """Another process holds the folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder, to write and delete in it; refused while another process holds it, or if it contains links."""
    refuse_links(folder)
    handle = open_unlinked(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        if not _take(handle):
            holder = os.pread(handle, 32, 1).decode("ascii", "replace").strip() if hasattr(os, "pread") else ""
            who = f"process {holder}" if holder.isdecimal() else "another process"
            raise LockedError(f"{who} is working on {folder}; wait for it, or stop it first")
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f" {os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _take(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
