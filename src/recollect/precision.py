"""Losses and scores are computed in single precision at least; linear algebra of statistics in double, on the host."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_single(x: Tensor) -> Tensor:
    """Half-precision tensors as single; others as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def on_host_in_double(x: Tensor) -> Tensor:
    """A copy for linear algebra that single precision is too coarse for; not every device has doubles."""
    return x.detach().cpu().double()
