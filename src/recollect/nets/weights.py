"""Pretrained weights, every name and shape checked before anything is loaded.

From the hub they are safetensors. From the package registry they are torch files, read only if their digest is the
known one, and then by torch's restricted loader, which makes tensors and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

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
        raise UserError(f"{path} is not a readable safetensors file: {error}; delete it and fetch it again") from error
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


def read_torch_file(path: Path, digest: str) -> dict[str, Tensor]:
    """Tensors of a torch file of known digest; leading underscores in their names are dropped."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); install its package again") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{path} is not the file that is known; install its package again")
    state: dict[str, Tensor] = torch.load(io.BytesIO(data), weights_only=True)
    return {re.sub(r"(^|\.)_", r"\1", name): tensor for name, tensor in state.items()}


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
