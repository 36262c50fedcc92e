"""Named tensors in a safetensors file with a hash. The hash is checked before any tensor is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from recollect.storage.files import sync

MAX_BYTES = 16 << 30


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write CPU tensors to a new file; return the file's hash."""
    save_file(_split_storage(tensors), path)
    sync(path)
    return hash_file(path)


def load_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """Load the tensors of a file with the given hash; raise ValueError for any other file.

    The file is memory-mapped and each tensor copied, so that memory holds one copy, and no tensor depends on the file
    afterwards: it may be replaced or deleted.
    """
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is not a regular file, or has more than {MAX_BYTES} bytes")
    if hash_file(path) != sha256:
        raise ValueError(f"{path.name} does not match its hash")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _split_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give each tensor its own contiguous storage, as safetensors requires; shared parameters are copied."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        contiguous = tensor.contiguous()
        address = contiguous.untyped_storage().data_ptr()
        separate[name] = contiguous.clone() if address in seen else contiguous
        seen.add(address)
    return separate
