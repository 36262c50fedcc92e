"""Losses and scores are computed in single precision at least, whatever a mixed-precision forward pass gave."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_single(x: Tensor) -> Tensor:
    """Half-precision tensors as single; others as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
