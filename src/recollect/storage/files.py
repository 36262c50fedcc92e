"""Whole files: written under a random name, synced and renamed, so that a link of the file's name is never followed.

Links among the parent folders are for `refuse_links` to find, which the lock calls.
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
    """A folder to be written to holds a symbolic link."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or leave what is there; a link of that name is replaced, not followed."""
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
    """Write a whole file of text or leave what is there."""
    write_bytes(path, text.encode())


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, which must not be a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_FOLLOW | BINARY
    with os.fdopen(open_unlinked(path, flags), "ab") as file:
        file.write(f"{line}\n".encode())


def open_unlinked(path: Path, flags: int) -> int:
    """A file descriptor of a regular file that no other name leads to."""
    if path.is_symlink():
        raise _link_error(path)
    handle = os.open(path, flags | NO_FOLLOW | NO_WAIT, 0o666)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(handle)
        raise UserError(f"{path} is no regular file, or a hard link to another; remove it")
    return handle


def read_limited(path: Path, most: int) -> bytes:
    """The bytes of a regular file; one that is longer, or a device or pipe, is a ValueError."""
    with os.fdopen(os.open(path, os.O_RDONLY | NO_WAIT | BINARY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"more than {most} bytes")
    return data


def refuse_links(folder: Path) -> None:
    """Refuse a folder that holds a symbolic link at any depth; the folder's own path may lead through one."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink():
                raise _link_error(path)


def _link_error(path: Path) -> LinkError:
    return LinkError(
        f"{path} is a symbolic link; nothing is written or deleted in a folder that holds one. "
        "Remove the link, or copy what it points to into its place"
    )


def sync(path: Path) -> None:
    """Have what was written to a file or folder reach the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # where folders cannot be opened and need not be
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
