"""Pretrained weights, every name and shape checked before anything is loaded; nothing in a file is ever executed.

From the hub they are safetensors. From the package registry they are torch's format of before 2020, of a known digest:
pickles that are scanned for names, not run, and then the numbers as they lie in memory.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from pickletools import genops

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from recollect.errors import UserError

_RESTORING = ContextVar("restoring", default=False)


@contextmanager
def restoring() -> Iterator[None]:
    """Within it backbones are built as their options say, but pretrained weights, to be replaced anyway, stay away."""
    token = _RESTORING.set(True)
    try:
        yield
    finally:
        _RESTORING.reset(token)


def is_restoring() -> bool:
    return _RESTORING.get()


def load_pretrained(network: nn.Module, repository: str, *, drop: tuple[str, ...]) -> None:
    """Fetch `repository`'s weights (cached by the hub client) and load all but the entries starting with `drop`."""
    if not is_restoring():
        load_weights(network, _fetch(repository), drop=drop)


def load_weights(network: nn.Module, path: Path, *, drop: tuple[str, ...] = ()) -> None:
    """Load a safetensors file strictly: each tensor of the network is there, in its shape, and nothing is left over."""
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no readable safetensors file: {error}; delete it and fetch it again") from error
    load_state(network, state, str(path), drop=drop)


def load_state(network: nn.Module, state: dict[str, Tensor], path: str, *, drop: tuple[str, ...] = ()) -> None:
    """Load tensors strictly, all but those whose name starts with `drop`."""
    state = {name: tensor for name, tensor in state.items() if not name.startswith(drop)}
    wanted = network.state_dict()
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing = sorted(wanted.keys() - state.keys() - counters)
    surplus = sorted(state.keys() - wanted.keys())
    if missing or surplus:
        raise UserError(f"{path} does not fit the network: missing {missing[:3]}, not expected {surplus[:3]}")
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise UserError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}")
    network.load_state_dict(wanted | state)


def read_legacy(path: Path, digest: str) -> dict[str, Tensor]:
    """Tensors of a file of known digest in torch's old format; leading underscores in their names are dropped.

    The file is five pickles (magic number, protocol, system, tensors with the keys of their storages, order of keys),
    then each storage: its length as eight bytes, and its numbers.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); install its package again") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{path} is not the file that is known; install its package again")
    stream = io.BytesIO(data)
    *_, tensors, order = [list(genops(stream)) for _ in range(5)]
    names: dict[str, str] = {}
    numbers: dict[str, list[int]] = {}  # length, offset, sizes, strides
    name, key = "", ""
    for code, argument, _ in tensors:
        if "UNICODE" in code.name and str(argument).isdigit():  # the storage's key follows the tensor's name
            key = str(argument)
            names[key], numbers[key] = name, []
        elif "UNICODE" in code.name and ("." in str(argument) or argument == "_metadata"):
            name, key = re.sub(r"(^|\.)_", r"\1", str(argument)), ""
        elif code.name.startswith("BININT") and key:
            numbers[key].append(int(argument or 0))
    state = {}
    for key in [str(argument) for code, argument, _ in order if "UNICODE" in code.name]:
        dtype = torch.int64 if names[key].endswith("num_batches_tracked") else torch.float32
        (length,) = struct.unpack("<q", stream.read(8))
        flat = torch.frombuffer(bytearray(stream.read(length * dtype.itemsize)), dtype=dtype)
        _, offset, *shape = numbers[key]
        half = len(shape) // 2
        state[names[key]] = flat.as_strided(shape[:half], shape[half:], offset).contiguous()
    return state


def _fetch(repository: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise UserError("pretrained weights need the hub client: pip install 'recollect-rfe[hub]'") from error
    try:
        return Path(hf_hub_download(repository, "model.safetensors"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"could not fetch {repository} from the hub ({type(error).__name__}); go online once, or use "
            "weights=none to start from random weights"
        ) from error
