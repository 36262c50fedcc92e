"""Pretrained weights from the hub: safetensors only, every name and shape checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from recollect.errors import UserError


def load_pretrained(network: nn.Module, repository: str, *, drop: tuple[str, ...]) -> None:
    """Fetch `repository`'s weights (cached by the hub client) and load all but the entries starting with `drop`."""
    load_weights(network, _fetch(repository), drop=drop)


def load_weights(network: nn.Module, path: Path, *, drop: tuple[str, ...] = ()) -> None:
    """Load a safetensors file strictly: each tensor of the network is there, in its shape, and nothing is left over."""
    try:
        found = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(drop)}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no readable safetensors file: {error}; delete it and fetch it again") from error
    wanted = network.state_dict()
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing = sorted(wanted.keys() - found.keys() - counters)
    surplus = sorted(found.keys() - wanted.keys())
    if missing or surplus:
        raise UserError(f"{path} does not fit the network: missing {missing[:3]}, not expected {surplus[:3]}")
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape:
            raise UserError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}")
    network.load_state_dict(wanted | found)


def _fetch(repository: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise UserError("pretrained weights need the hub client: pip install 'recollect[hub]'") from error
    try:
        return Path(hf_hub_download(repository, "model.safetensors"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"could not fetch {repository} from the hub ({type(error).__name__}); go online once, or use "
            "weights=none to start from random weights"
        ) from error
