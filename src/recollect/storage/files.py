"""Whole files: written under a random name, synced and renamed. Symbolic links are never followed."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from recollect.errors import UserError

UNFINISHED = ".unfinished"
"""How the name of a file ends while it is written; a crash may leave one."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
BINARY = getattr(os, "O_BINARY", 0)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or leave what is there; a link of that name is replaced, not followed."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
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
    """A file descriptor of a path that is no link."""
    if path.is_symlink():
        raise _link_error(path)
    return os.open(path, flags | NO_FOLLOW, 0o666)


def refuse_links(folder: Path) -> None:
    """Refuse a folder that holds a symbolic link at any depth; the folder's own path may lead through one."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink():
                raise _link_error(path)


def _link_error(path: Path) -> UserError:
    return UserError(
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
