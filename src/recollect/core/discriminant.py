"""A discriminant over class statistics, as a layer that is recomputed when they change.

Scores are W z + b; with components of classes (core/components.py) they are W z + b + ½ |P_c (z - μ_c)|².
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.core.affine import fit_affine
from recollect.core.statistics import TEMPERATURES, ClassStatistics, Shrinkage
from recollect.device import on_host_in_double, to_host

PRIORS = tuple(2.0**exponent for exponent in range(5, 15))
"""How many images the identity may count for in the covariance, κ: the shrinkage after n images is κ / (κ + n)."""
SPREADS = (0.0, 0.03, 0.1, 0.3)
"""How much the components of a class may count for beside the shared covariance, γ."""
HELD_OUT = 5
"""The last of so many images of a class is held out."""
MAX_IMAGES = 20_000  # that decide on shrinkage and temperature


class Discriminant(nn.Module):
    """log p(c | z) up to a constant, for classes of equal priors that share a covariance.

    With `num_components`, that many principal components of each class are stored and added to its own covariance.

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
    projections: Tensor
    offsets: Tensor
    prior_losses: Tensor
    forgotten: Tensor

    def __init__(
        self,
        feature_dim: int,
        shrinkage: Shrinkage | Literal["held-out"] = "held-out",
        num_components: int = 0,
    ) -> None:
        super().__init__()
        self._shrinkage = shrinkage
        self._spreads = SPREADS if num_components else SPREADS[:1]
        self.statistics = ClassStatistics(feature_dim, num_components)
        self.register_buffer("weight", torch.zeros(0, feature_dim))
        self.register_buffer("bias", torch.zeros(0))
        self.register_buffer("centre", torch.zeros(feature_dim))
        if num_components:
            self.register_buffer("projections", torch.zeros(0, num_components, feature_dim))  # P
            self.register_buffer("offsets", torch.zeros(0, num_components))  # P (μ - centre)
        if shrinkage == "held-out":  # summed over all tasks, spread by spread
            self.register_buffer("prior_losses", torch.zeros(len(self._spreads) * len(PRIORS), len(TEMPERATURES)))
            # Degrees of freedom of dropped classes, whose images the covariance still counts.
            self.register_buffer("forgotten", torch.zeros((), dtype=torch.int64))

    @property
    def _has_components(self) -> bool:
        return self.statistics.num_components > 0

    @property
    def shrinkage(self) -> Shrinkage:
        """As given; or by the prior of least loss on images that were held out, and OAS as long as there were none."""
        if self._shrinkage != "held-out":
            return self._shrinkage
        if not bool(self.prior_losses.any()):
            return "oas"
        num = self.statistics.degrees_of_freedom + int(self.forgotten)
        return shrinkages(num)[self._best // len(TEMPERATURES) % len(PRIORS)]

    @property
    def spread(self) -> float:
        """γ of least loss on images that were held out; 0 as long as there were none."""
        return self._spreads[self._best // len(TEMPERATURES) // len(PRIORS)] if self._shrinkage == "held-out" else 0.0

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
        if self._has_components:
            self.projections = F.pad(self.projections, (0, 0, 0, 0, 0, num_classes))
            self.offsets = F.pad(self.offsets, (0, 0, 0, num_classes))

    def keep(self, kept: Bool[Tensor, " classes"]) -> None:
        """Drop all other classes; W, b and P are made without them by the next `refresh`."""
        before = self.statistics.degrees_of_freedom
        self.statistics.keep(kept)
        if self._shrinkage == "held-out":
            self.forgotten += before - self.statistics.degrees_of_freedom
        self.weight, self.bias = self.weight[kept], self.bias[kept]
        if self._has_components:
            self.projections, self.offsets = self.projections[kept], self.offsets[kept]

    def add(self, z: Float[Tensor, "n d"], labels: Int[Tensor, " n"], views: int = 1) -> None:
        """Merge more features into the statistics; labels count the classes from 0.

        Of images with several views, each view counts as a part of one image.
        """
        if views == 1:
            self.statistics.add(z, labels)
            return
        new = ClassStatistics(z.shape[1], self.statistics.num_components).to(self.statistics.means.device)
        new.grow(self.statistics.num_classes)
        new.add(z, labels)
        new.counts //= views
        new.scatter /= views
        self.statistics.merge(new)

    def choose(self, z: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> None:
        """Choose shrinkage, spread and temperature by a fifth of a task's features, not in the statistics yet.

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
            losses = others.losses(z[held], labels[held], shrinkages(others.degrees_of_freedom), self._spreads)
            self.prior_losses += (int(held.sum()) * losses).flatten(0, 1).to(self.prior_losses)

    def follow(self, old: Float[Tensor, "n d"], new: Float[Tensor, "n d"], views: int = 1) -> None:
        """Carry the classes along with a space that moved, by what it did to some images."""
        self.statistics.push(*fit_affine(old, new, views))

    def refresh(self, temperature: float = 1.0, spread: float | None = None) -> None:
        """Make W, b and P of the statistics as they are, with its own spread or that of another discriminant.

        Scores are divided by the temperature.
        """
        weight, bias = (part / temperature for part in self.statistics.discriminant(self.shrinkage))
        self.weight.copy_(weight)
        self.centre.copy_(self.statistics.means[self.statistics.counts > 0].mean(0))
        biases = on_host_in_double(weight) @ on_host_in_double(self.centre) + on_host_in_double(bias)
        if self._has_components:
            along, losses = self.statistics.projections(self.shrinkage, self.spread if spread is None else spread)
            along /= temperature**0.5
            deviations = on_host_in_double(self.statistics.means - self.centre)
            self.projections.copy_(along)
            self.offsets.copy_((along @ deviations[:, :, None]).squeeze(2))
            biases -= losses / temperature
        self.bias.copy_(biases)

    @torch.no_grad()
    def draw(
        self, classes: Int[Tensor, " n"], generator: torch.Generator, spread: float | None = None
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
        """Pseudo-features: the means of these classes, and deviations from them as their Gaussians have."""
        statistics, own = self.statistics, self.spread if spread is None else spread
        factor = torch.linalg.cholesky(statistics.covariance(self.shrinkage))
        chosen = classes.to(statistics.means.device)
        deviations = torch.randn(len(classes), len(factor), generator=generator, dtype=factor.dtype) @ factor.T
        if own and self._has_components:
            weights = torch.randn(len(classes), 1, statistics.num_components, generator=generator, dtype=factor.dtype)
            labels = to_host(classes)
            for label in labels.unique().tolist():  # one by one: all components at once could take a gigabyte
                rows, components = labels == label, on_host_in_double(statistics.components[label])
                deviations[rows] += own**0.5 * (weights[rows] @ components).squeeze(1)
        means = statistics.means[chosen]
        return means, deviations.to(means)

    def read_buffers(self) -> list[Tensor]:
        """What of its state is needed to read, and not only to learn more."""
        components = [self.projections, self.offsets] if self._has_components else []
        return [self.weight, self.bias, self.centre, *components]

    def forward(self, z: Float[Tensor, "b d"]) -> Float[Tensor, "b classes"]:
        centred = z - self.centre  # so that little is rounded
        scores = F.linear(centred, self.weight, self.bias)
        if not self._has_components:
            return scores
        along = F.linear(centred, self.projections.flatten(0, 1)).unflatten(1, self.offsets.shape)
        gains: Tensor = (along - self.offsets).square().sum(2) / 2
        return scores + gains


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
