"""The auxiliary network h_t: a deliberately weak network that keeps a little of what f_{t-1} knew.

pool to 16x16 → conv 3x3/2 → ReLU → max-pool 2 → conv 3x3/2 → ReLU → max-pool 2 → flatten
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

POOLED_SIZE = 16


class AuxiliaryExtractor(nn.Module):
    """Two small convolutions on a 16x16 version of the input; 75,648 parameters at dim 128."""

    def __init__(self, dim: int = 128, in_channels: int = 3, pool: Literal["max", "mean"] = "max") -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"the auxiliary dimension must be even and at least 2, got {dim}")
        if pool not in ("max", "mean"):
            raise ValueError(f"the auxiliary pooling is 'max' (the paper) or 'mean' (the authors' code), got {pool!r}")
        self.dim = dim
        self.shrink = nn.AdaptiveMaxPool2d(POOLED_SIZE) if pool == "max" else nn.AdaptiveAvgPool2d(POOLED_SIZE)
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, dim // 2, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(dim // 2, dim, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b m"]:
        if min(x.shape[-2:]) < POOLED_SIZE:
            raise ValueError(f"the auxiliary network needs images of at least 16 pixels, got {tuple(x.shape[-2:])}")
        return self.layers(self.shrink(x))  # type: ignore[no-any-return]
