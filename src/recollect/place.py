"""The one way from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; the host goes on at once where the copy no longer needs the host's memory by then.

    CUDA stages ordinary memory before the call returns. Elsewhere a copy that is not waited for may read memory that
    was given back already.
    """
    return tensor.to(device, non_blocking=device.type == "cuda")
