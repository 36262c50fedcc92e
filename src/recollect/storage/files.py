"""Atomic writes: under a random name, synced and renamed, so that a link of the file's name is never followed.

`refuse_links`, which the lock calls, finds links among the parent folders.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from recollect.errors import UserError

UNFINISHED = "unfinished"
"""The name of a folder, and the suffix of a file, that is still being written; a crash may leave one."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
BINARY = getattr(os, "O_BINARY", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # so that a pipe without a writer does not hang


class LinkError(UserError):
    """A folder to be written to contains a symbolic link."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file completely or leave the old one; a link of that name is replaced, not followed."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.{UNFINISHED}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | BINARY, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or leave the old one."""
    write_bytes(path, text.encode())


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, which must not be a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_FOLLOW | BINARY
    with os.fdopen(open_regular(path, flags), "ab") as file:
        file.write(f"{line}\n".encode())


def open_regular(path: Path, flags: int) -> int:
    """Return a file descriptor of a regular file that has no other name."""
    if path.is_symlink():
        raise _link_error(path)
    handle = os.open(path, flags | NO_FOLLOW | NO_WAIT, 0o666)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(handle)
        raise UserError(f"{path} is not a regular file, or is a hard link to another; remove it")
    return handle


def read_limited(path: Path, max_bytes: int) -> bytes:
    """Read a regular file; raise ValueError for a longer file, a device or a pipe."""
    with os.fdopen(os.open(path, os.O_RDONLY | NO_WAIT | BINARY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return data


def refuse_links(folder: Path) -> None:
    """Refuse a folder that contains a symbolic link at any depth; the path to the folder itself may contain one."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink():
                raise _link_error(path)


def _link_error(path: Path) -> LinkError:
    return LinkError(
        f"{path} is a symbolic link; nothing is written or deleted in a folder that contains one. "
        "Remove the link, or copy what it points to into its place"
    )


def sync(path: Path) -> None:
    """Flush what was written to a file or folder to the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # folders cannot be opened there, and need not be
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
