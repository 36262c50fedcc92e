"""One process per folder: a lock that the operating system releases when its holder ends, however it ends."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recollect.errors import UserError
from recollect.storage.files import UNFINISHED, open_regular, refuse_links

LOCK_NAME = "lock"
POLL_SECONDS = 0.2  # between attempts to take a lock that another process holds
TEMPORARY = re.compile(rf".+\.[0-9a-f]{{16}}\.{UNFINISHED}")  # as `write_bytes` names them


class LockedError(UserError):
    """Another process holds the folder's lock."""


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder's lock, to write and delete in it, and remove the temporary files that a crash left there.

    While another process holds the lock it is refused or, with `wait`, waited for. A folder that contains symbolic
    links is refused.
    """
    refuse_links(folder)
    handle = open_regular(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        if not _try_lock(handle):
            holder = os.pread(handle, 32, 1).decode("ascii", "replace").strip() if hasattr(os, "pread") else ""
            who = f"process {holder}" if holder.isdecimal() else "another process"
            if not wait:
                raise LockedError(f"{who} is using {folder}; wait until it ends, or stop it first")
            warnings.warn(f"{who} is using {folder}; waiting until it ends", stacklevel=3)
            while not _try_lock(handle):
                time.sleep(POLL_SECONDS)
            refuse_links(folder)  # which may have come meanwhile
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f" {os.getpid()}\n".encode())
        _remove_temporary_files(folder)
        yield
    finally:
        os.close(handle)


def _remove_temporary_files(folder: Path) -> None:
    """Remove what interrupted writes left, except in subfolders with their own lock, where another may be writing."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not Path(parent, name, LOCK_NAME).exists()]
        for name in files:
            path = Path(parent, name)
            if TEMPORARY.fullmatch(name) and stat.S_ISREG(path.lstat().st_mode):
                path.unlink()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
