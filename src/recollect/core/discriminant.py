"""A linear discriminant over class statistics, as a layer: scores W z + b, recomputed when the statistics change."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.core.affine import fit_affine
from recollect.core.statistics import ClassStatistics, Shrinkage
from recollect.device import on_host_in_double

CHOICES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
"""Shrinkages to choose from."""
HELD_OUT, MOST = 5, 20_000  # every so many images, of so many at most


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

    losses: Tensor

    def __init__(self, feature_dim: int, shrinkage: Shrinkage | Literal["held-out"] = "held-out") -> None:
        super().__init__()
        self._shrinkage = shrinkage
        self.statistics = ClassStatistics(feature_dim)
        self.register_buffer("weight", torch.zeros(0, feature_dim))
        self.register_buffer("bias", torch.zeros(0))
        self.register_buffer("centre", torch.zeros(feature_dim))
        if shrinkage == "held-out":
            self.register_buffer("losses", torch.zeros(len(CHOICES)))  # of all images held out so far

    @property
    def shrinkage(self) -> Shrinkage:
        """As given; or the one of least loss on images that were held out, and OAS as long as there were none."""
        if self._shrinkage != "held-out":
            return self._shrinkage
        return CHOICES[int(self.losses.argmin())] if bool(self.losses.any()) else "oas"

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

    def choose(self, z: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> None:
        """Let a fifth of a task's features, to be added later, decide on the shrinkage, by statistics of all others.

        The network must not have been trained on the images: of those that it was, hardly any is classified wrongly.
        """
        if self._shrinkage != "held-out":
            return
        step = max(1, -(-len(z) // MOST))  # images may be sorted by class
        z, labels = z[::step], labels[::step]
        held = torch.arange(len(z), device=z.device) % HELD_OUT == HELD_OUT - 1
        others = deepcopy(self.statistics)
        others.add(z[~held], labels[~held])
        held &= (others.counts > 0)[labels]
        if bool(held.any()) and int((others.counts > 0).sum()) > 1:  # one class is always right
            losses = others.losses(z[held], labels[held], CHOICES)
            self.losses += (int(held.sum()) * losses).to(self.losses)

    def follow(self, old: Float[Tensor, "n d"], new: Float[Tensor, "n d"]) -> None:
        """Carry the classes along with a space that moved, by what it did to some images."""
        self.statistics.push(*fit_affine(old, new))

    def refresh(self) -> None:
        """Make W and b of the statistics as they are."""
        weight, bias = self.statistics.discriminant(self.shrinkage)
        self.weight.copy_(weight)
        self.centre.copy_(self.statistics.means[self.statistics.counts > 0].mean(0))
        self.bias.copy_(on_host_in_double(weight) @ on_host_in_double(self.centre) + on_host_in_double(bias))

    def read_buffers(self) -> list[Tensor]:
        """What of its state is needed to read, and not only to learn more."""
        return [self.weight, self.bias, self.centre]

    def forward(self, z: Float[Tensor, "b d"]) -> Float[Tensor, "b classes"]:
        return F.linear(z - self.centre, self.weight, self.bias)  # features around zero, so that little is rounded
