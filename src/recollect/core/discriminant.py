"""A linear discriminant over class statistics, as a layer: scores W z + b, recomputed when the statistics change."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.core.affine import fit_affine
from recollect.core.statistics import TEMPERATURES, ClassStatistics, Shrinkage
from recollect.device import on_host_in_double

PRIORS = tuple(2.0**exponent for exponent in range(5, 15))
"""How many images the identity may count for in the covariance, κ: the shrinkage after n images is κ / (κ + n)."""
HELD_OUT = 5
"""The last of so many images of a class is held out."""
MAX_IMAGES = 20_000  # that decide on shrinkage and temperature


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
    prior_losses: Tensor
    forgotten: Tensor

    def __init__(self, feature_dim: int, shrinkage: Shrinkage | Literal["held-out"] = "held-out") -> None:
        super().__init__()
        self._shrinkage = shrinkage
        self.statistics = ClassStatistics(feature_dim)
        self.register_buffer("weight", torch.zeros(0, feature_dim))
        self.register_buffer("bias", torch.zeros(0))
        self.register_buffer("centre", torch.zeros(feature_dim))
        if shrinkage == "held-out":
            self.register_buffer("prior_losses", torch.zeros(len(PRIORS), len(TEMPERATURES)))  # summed over all tasks
            # Degrees of freedom of dropped classes, of which the covariance still is.
            self.register_buffer("forgotten", torch.zeros((), dtype=torch.int64))

    @property
    def shrinkage(self) -> Shrinkage:
        """As given; or by the prior of least loss on images that were held out, and OAS as long as there were none."""
        if self._shrinkage != "held-out":
            return self._shrinkage
        if not bool(self.prior_losses.any()):
            return "oas"
        num = self.statistics.degrees_of_freedom + int(self.forgotten)
        return shrinkages(num)[self._best // len(TEMPERATURES)]

    @property
    def temperature(self) -> float:
        """The divisor of scores that has the least loss on images that were held out; 1 as long as there were none."""
        return TEMPERATURES[self._best % len(TEMPERATURES)] if self._shrinkage == "held-out" else 1.0

    @property
    def _best(self) -> int:
        return int(self.prior_losses.argmin())

    def grow(self, num_classes: int) -> None:
        """Make room for more classes."""
        self.statistics.grow(num_classes)
        self.weight = F.pad(self.weight, (0, 0, 0, num_classes))
        self.bias = F.pad(self.bias, (0, num_classes))

    def keep(self, kept: Bool[Tensor, " classes"]) -> None:
        """Drop all other classes; W and b are made without them by the next `refresh`."""
        before = self.statistics.degrees_of_freedom
        self.statistics.keep(kept)
        if self._shrinkage == "held-out":
            self.forgotten += before - self.statistics.degrees_of_freedom
        self.weight, self.bias = self.weight[kept], self.bias[kept]

    def add(self, z: Float[Tensor, "n d"], labels: Int[Tensor, " n"], views: int = 1) -> None:
        """Merge more features into the statistics; labels count the classes from 0.

        Of images with several views, each view counts as a part of one image.
        """
        if views == 1:
            self.statistics.add(z, labels)
            return
        new = ClassStatistics(z.shape[1]).to(self.statistics.means.device)
        new.grow(self.statistics.num_classes)
        new.add(z, labels)
        new.counts //= views
        new.scatter /= views
        self.statistics.merge(new)

    def choose(self, z: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> None:
        """Choose shrinkage and temperature by a fifth of a task's features, which are not in the statistics yet.

        The network must not have been trained on these images: it would classify nearly all of them correctly.
        """
        if self._shrinkage != "held-out":
            return
        step = max(1, -(-len(z) // MAX_IMAGES))  # images may be sorted by class
        z, labels = z[::step], labels[::step]
        held = held_out(labels)
        others = deepcopy(self.statistics)
        others.add(z[~held], labels[~held])
        held &= (others.counts > 0)[labels]
        if bool(held.any()) and int((others.counts > 0).sum()) > 1:  # one class is always right
            losses = others.losses(z[held], labels[held], shrinkages(others.degrees_of_freedom))
            self.prior_losses += (int(held.sum()) * losses).to(self.prior_losses)

    def follow(self, old: Float[Tensor, "n d"], new: Float[Tensor, "n d"], views: int = 1) -> None:
        """Carry the classes along with a space that moved, by what it did to some images."""
        self.statistics.push(*fit_affine(old, new, views))

    def refresh(self, temperature: float = 1.0) -> None:
        """Make W and b of the statistics as they are; scores are divided by the temperature."""
        weight, bias = (part / temperature for part in self.statistics.discriminant(self.shrinkage))
        self.weight.copy_(weight)
        self.centre.copy_(self.statistics.means[self.statistics.counts > 0].mean(0))
        self.bias.copy_(on_host_in_double(weight) @ on_host_in_double(self.centre) + on_host_in_double(bias))

    def read_buffers(self) -> list[Tensor]:
        """What of its state is needed to read, and not only to learn more."""
        return [self.weight, self.bias, self.centre]

    def forward(self, z: Float[Tensor, "b d"]) -> Float[Tensor, "b classes"]:
        return F.linear(z - self.centre, self.weight, self.bias)  # features around zero, so that little is rounded


def shrinkages(num: int) -> list[float]:
    """What each prior amounts to in a covariance of `num` degrees of freedom: the more there are, the less."""
    return [prior / (prior + num) for prior in PRIORS]


def held_out(labels: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Every fifth image of each class, in whatever order the classes come.

    >>> held_out(torch.tensor([0, 1] * 5 + [1])).nonzero().flatten()
    tensor([8, 9])
    """
    order = labels.argsort(stable=True)
    sizes = torch.bincount(labels)
    first = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(labels), device=labels.device) - first
    return place % HELD_OUT == HELD_OUT - 1
