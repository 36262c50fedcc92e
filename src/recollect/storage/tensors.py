"""Named tensors in a safetensors file with a hash. The hash is checked before anything is held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from recollect.storage.files import read_limited, sync

MAX_BYTES = 16 << 30


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors of the host to a new file; the file's hash."""
    save_file(_split_storage(tensors), path)
    sync(path)
    return hash_file(path)


def load_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of a file of the given hash; anything else is a ValueError."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is no regular file, or has more than {MAX_BYTES} bytes")
    if hash_file(path) != sha256:
        raise ValueError(f"{path.name} does not match its hash")
    try:
        return load(read_limited(path, MAX_BYTES))
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def hash_file(path: Path) -> str:
    """SHA-256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _split_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own, as the format wants it: a layer may go by two names."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        contiguous = tensor.contiguous()
        address = contiguous.untyped_storage().data_ptr()
        separate[name] = contiguous.clone() if address in seen else contiguous
        seen.add(address)
    return separate
