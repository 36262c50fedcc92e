"""A linear discriminant over class statistics, as a layer: scores W z + b, recomputed when the statistics change."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.core.affine import fit_affine
from recollect.core.statistics import ClassStatistics, Shrinkage
from recollect.device import on_host_in_double


class Discriminant(nn.Module):
    """log p(c | z) up to a constant, for classes that share a covariance and have equal priors.

    >>> discriminant = Discriminant(feature_dim=2)
    >>> discriminant.grow(2)
    >>> z = torch.tensor([[0.0, 1.0], [1.0, 0.0], [4.0, 1.0], [5.0, 0.0]])
    >>> discriminant.add(z, torch.tensor([0, 0, 1, 1]))
    >>> discriminant.refresh()
    >>> discriminant(z).argmax(dim=1)
    tensor([0, 0, 1, 1])
    """

    weight: Tensor
    bias: Tensor
    centre: Tensor

    def __init__(self, feature_dim: int, shrinkage: Shrinkage = "oas") -> None:
        super().__init__()
        self.shrinkage = shrinkage
        self.statistics = ClassStatistics(feature_dim)
        self.register_buffer("weight", torch.zeros(0, feature_dim))
        self.register_buffer("bias", torch.zeros(0))
        self.register_buffer("centre", torch.zeros(feature_dim))

    def grow(self, num_classes: int) -> None:
        """Make room for more classes."""
        self.statistics.grow(num_classes)
        self.weight = F.pad(self.weight, (0, 0, 0, num_classes))
        self.bias = F.pad(self.bias, (0, num_classes))

    def keep(self, kept: Bool[Tensor, " classes"]) -> None:
        """Drop all other classes."""
        self.statistics.keep(kept)
        self.weight, self.bias = self.weight[kept], self.bias[kept]
        self.refresh()

    def add(self, z: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> None:
        """Merge more features into the statistics; labels count the classes from 0."""
        self.statistics.add(z, labels)

    def follow(self, old: Float[Tensor, "n d"], new: Float[Tensor, "n d"]) -> None:
        """Carry the classes along with a space that moved, by what it did to some images."""
        self.statistics.push(*fit_affine(old, new))

    def refresh(self) -> None:
        """Make W and b of the statistics as they are."""
        weight, bias = self.statistics.discriminant(self.shrinkage)
        self.weight.copy_(weight)
        self.centre.copy_(self.statistics.means[self.statistics.counts > 0].mean(0))
        self.bias.copy_(on_host_in_double(weight) @ on_host_in_double(self.centre) + on_host_in_double(bias))

    def forward(self, z: Float[Tensor, "b d"]) -> Float[Tensor, "b classes"]:
        return F.linear(z - self.centre, self.weight, self.bias)  # features around zero, so that little is rounded
