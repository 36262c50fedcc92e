"""Reads files in pieces, so that an audit of a large file needs little memory.

A safetensors file consists of eight bytes with the length of a JSON header, the header, which lists the type, shape and
position of each tensor, and the bytes of the tensors. `open_layout` lets the library of the format validate it first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from recollect.errors import UserError

INCOMPLETE = "the audit would be incomplete"
PIECE = 1 << 22  # bytes read at a time; a multiple of every number's size
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """One tensor of a safetensors file, and the position of its bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Layout:
    """The tensors that the header of a safetensors file lists, and the end of the header."""

    tensors: list[Stored]
    end: int


def unreadable_error(path: Path, why: object) -> UserError:
    return UserError(f"{path} cannot be read ({why}); {INCOMPLETE}")


def list_files(folder: Path) -> list[Path]:
    """List all files under a folder; links to folders are listed, not followed."""

    def refuse(error: OSError) -> None:
        raise unreadable_error(Path(error.filename or folder), error.strerror)

    paths = []
    for root, folders, files in os.walk(folder, onerror=refuse):
        paths += [Path(root, name) for name in files]
        paths += [Path(root, name) for name in folders if os.path.islink(os.path.join(root, name))]
    return sorted(paths)


def read_pieces(path: Path, begin: int = 0, end: int | None = None) -> Iterator[bytearray]:
    """Yield the bytes of a file from `begin` to `end`."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            left = (os.fstat(file.fileno()).st_size if end is None else end) - begin
            while left > 0:
                piece = bytearray(min(left, PIECE))
                if file.readinto(piece) != len(piece):
                    raise unreadable_error(path, "it became shorter while it was read")
                left -= len(piece)
                yield piece
    except OSError as error:
        raise unreadable_error(path, error.strerror) from error


def open_layout(path: Path) -> Layout:
    """Read the header of a safetensors file; a damaged file is an error."""
    try:
        with safe_open(path, framework="pt"):
            pass
        with path.open("rb") as file:
            end = 8 + int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(end - 8))
        tensors = []
        for name, about in header.items():
            if name != "__metadata__":
                first, last = about["data_offsets"]
                shape = tuple(about["shape"])
                tensors.append(Stored(name, DTYPES[about["dtype"]], shape, end + first, end + last))
        return Layout(sorted(tensors, key=lambda stored: stored.begin), end)
    except KeyError as error:
        raise unreadable_error(path, f"unknown type {error}") from error
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise unreadable_error(path, error) from error


def check_count(value: object, what: str, most: int) -> int:
    """Return a count that was read from a JSON file; anything but a whole number up to `most` is an error."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        shown = ascii(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a number too large to show"
        raise UserError(f"{what} is {shown[:60]}, expected a whole number from 0 to {most}; restore the file")
    return value
