"""Classes as Gaussians with one covariance: what a method stores of a task's features in place of its images.

    n_c, μ_c = counts and means       S = Σ_c Σ_{z of c} (z - μ_c)(z - μ_c)ᵀ       Σ = S / (n - C), shrunk
    log p(c | z) = μ_cᵀ Σ⁻¹ z - ½ μ_cᵀ Σ⁻¹ μ_c + ¼ tr(Σ⁻¹ S / (n - C)) / n_c + what is the same for all classes

Priors are equal, whatever the number of a class's images or the size of its task. The last term corrects for means of
few images, which are farther from new images of their class than the true mean is. It is half of what they lose by that
on average: the whole would let classes of few images win too often, since their scores also vary more.

Statistics are merged exactly (Chan et al. 1979) in double precision on the host, so images may come in any order and in
any number of parts. A class of a single image stores the feature of that image as its mean. The principal components of
each class, if they are asked for, are not exact where its images come in parts: each part is joined to the components
of those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.core.components import IMAGES_PER_COMPONENT, Whitened, principal
from recollect.device import on_host_in_double, to_host

Shrinkage = float | Literal["oas"]
ROWS = 8192
"""Features that are converted to double precision at a time."""
TEMPERATURES = tuple(2.0**exponent for exponent in range(8))
"""To divide scores by, which are too large in many dimensions."""
MIN_SHRINKAGE = 1e-6
"""Keeps the covariance invertible where features are constant or fewer than their dimensions."""


class ClassStatistics(nn.Module):
    """Counts, means and shared scatter of features, and up to `num_components` principal components of each class.

    >>> statistics = ClassStatistics(feature_dim=2)
    >>> statistics.grow(2)
    >>> statistics.add(torch.tensor([[0.0, 0.0], [1.0, 1.0], [4.0, 0.0], [5.0, 1.0]]), torch.tensor([0, 0, 1, 1]))
    >>> statistics.means
    tensor([[0.5000, 0.5000],
            [4.5000, 0.5000]])
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    components: Tensor

    def __init__(self, feature_dim: int, num_components: int = 0) -> None:
        super().__init__()
        self.feature_dim, self.num_components = feature_dim, num_components
        self.register_buffer("counts", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("means", torch.zeros(0, feature_dim))
        self.register_buffer("scatter", torch.zeros(feature_dim * (feature_dim + 1) // 2))  # upper triangle, by rows
        if num_components:  # each as long as its standard deviation
            self.register_buffer("components", torch.zeros(0, num_components, feature_dim))

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    @property
    def degrees_of_freedom(self) -> int:
        """n - C, over the classes that have images."""
        return int(self.counts.sum()) - int((self.counts > 0).sum())

    def grow(self, num_classes: int) -> None:
        """Make room for more classes."""
        self.counts = torch.cat([self.counts, self.counts.new_zeros(num_classes)])
        self.means = torch.cat([self.means, self.means.new_zeros(num_classes, self.feature_dim)])
        if self.num_components:
            self.components = F.pad(self.components, (0, 0, 0, 0, 0, num_classes))

    @torch.no_grad()
    def keep(self, kept: Bool[Tensor, " classes"]) -> None:
        """Drop the counts, means and components of all other classes.

        The covariance, to which their images contributed, cannot be separated and stays as it is; in later merges it
        has the weight of the images that are left.
        """
        before = self.degrees_of_freedom
        self.counts, self.means = self.counts[kept], self.means[kept]
        if self.num_components:
            self.components = self.components[kept]
        self.scatter.mul_(self.degrees_of_freedom / max(before, 1))

    @torch.no_grad()
    def add(self, features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> None:
        """Merge more features; labels count the classes from 0."""
        parts = torch.arange(len(labels), device=labels.device)
        if self.num_components:  # which need the images of a class together
            parts = labels.argsort(stable=True)
        for rows in parts.split(ROWS):
            self._add(on_host_in_double(features[rows]), on_host_in_double(labels[rows]).long())

    def _add(self, z: Tensor, y: Tensor) -> None:
        members = F.one_hot(y, self.num_classes).to(z.dtype)  # [n, classes]
        num = members.sum(0)
        means = members.T @ z / num.clamp(min=1)[:, None]
        centred = z - members @ means
        deviations = [centred[y == own] for own in range(self.num_classes)] if self.num_components else []
        self._merge(num, means, centred.T @ centred, slice(0, self.num_classes), deviations)

    @torch.no_grad()
    def merge(self, other: ClassStatistics, first_class: int = 0) -> None:
        """Add the statistics of other images; their class 0 is this one's `first_class`."""
        rows = slice(first_class, first_class + other.num_classes)
        num, means = on_host_in_double(other.counts), on_host_in_double(other.means)
        self._merge(num, means, other._unpacked(), rows, other._deviations(slice(0, other.num_classes)))

    def _merge(self, num: Tensor, means: Tensor, scatter: Tensor, rows: slice, deviations: Sequence[Tensor]) -> None:
        old_num, old_means = on_host_in_double(self.counts[rows]), on_host_in_double(self.means[rows])
        total = (old_num + num).clamp(min=1)
        between = (old_means - means) * (old_num * num / total).sqrt()[:, None]
        self._pack(self._unpacked() + scatter + between.T @ between)
        if self.num_components and len(means):
            parts = zip(self._deviations(rows), deviations, between[:, None], strict=True)
            joined = [self._join(torch.cat(part), int(n)) for part, n in zip(parts, old_num + num, strict=True)]
            self.components[rows] = torch.stack(joined).to(self.components)
        self.means[rows] = ((old_num[:, None] * old_means + num[:, None] * means) / total[:, None]).to(self.means)
        self.counts[rows] += num.to(self.counts)

    def _deviations(self, rows: slice) -> list[Tensor]:
        """The components of classes, as long as those of their scatter."""
        if not self.num_components:
            return []
        lengths = (on_host_in_double(self.counts[rows]) - 1).clamp(min=0).sqrt()
        return list(on_host_in_double(self.components[rows]) * lengths[:, None, None])

    def _join(self, deviations: Tensor, num: int) -> Tensor:
        """The components of a class of `num` images, one for every ten of them at most."""
        few = min(self.num_components, num // IMAGES_PER_COMPONENT)
        found = principal(deviations, few) / max(num - 1, 1) ** 0.5
        return F.pad(found, (0, 0, 0, self.num_components - few))

    @torch.no_grad()
    def push(
        self,
        weight: Float[Tensor, "d d"],
        bias: Float[Tensor, " d"],
        residual: Float[Tensor, "d d"] | None = None,
    ) -> None:
        """Carry all classes through z → W z + b; `residual` is the covariance of what the map misses."""
        w, b = on_host_in_double(weight), on_host_in_double(bias)
        self.means.copy_(on_host_in_double(self.means) @ w.T + b)
        if self.num_components:
            self.components.copy_(on_host_in_double(self.components) @ w.T)
        scatter = w @ self._unpacked() @ w.T
        if residual is not None:
            scatter += on_host_in_double(residual) * self.degrees_of_freedom
        self._pack(scatter)

    @torch.no_grad()
    def covariance(self, shrinkage: Shrinkage = "oas") -> Float[Tensor, "d d"]:
        """The shared covariance in double precision on the host, shrunk towards a multiple of the identity."""
        covariance = self._unpacked() / max(self.degrees_of_freedom, 1)
        return shrink(covariance, self.degrees_of_freedom, shrinkage)

    @torch.no_grad()
    def losses(
        self,
        features: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
        shrinkages: Sequence[float],
        spreads: Sequence[float] = (0.0,),
    ) -> Float[Tensor, "spreads shrinkages temperatures"]:
        """Cross-entropy of the discriminant on other images, with each spread and shrinkage, at each temperature."""
        z, y, is_empty = on_host_in_double(features), to_host(labels), to_host(self.counts) == 0
        means, num = on_host_in_double(self.means), self.degrees_of_freedom
        covariance = self._unpacked() / max(num, 1)
        # Computed once for all shrinkages.
        eigenvalues = covariance[:0, 0] if self._has_equal_counts else torch.linalg.eigvalsh(covariance).clamp(min=0)

        def loss(scores: Tensor) -> Tensor:
            scores = scores.masked_fill(is_empty, float("-inf"))
            return torch.stack([F.cross_entropy(scores / temperature, y) for temperature in TEMPERATURES])

        def losses(shrinkage: float) -> Tensor:
            factor = torch.linalg.cholesky(shrink(covariance, num, shrinkage))
            weight = torch.cholesky_solve(means.T, factor).T
            own, identity = shares(covariance, num, shrinkage)
            noise = self._noise((eigenvalues / (own * eigenvalues + identity)).sum())
            scores = z @ weight.T - 0.5 * (means * weight).sum(1) + noise
            if not self.num_components:
                return loss(scores)[None]
            whitened = Whitened(on_host_in_double(self.components), factor)
            along = whitened.along(z, means)
            return torch.stack(
                [loss(scores + whitened.gains(along, spread) if spread else scores) for spread in spreads]
            )

        return torch.stack([losses(shrinkage) for shrinkage in shrinkages], dim=1)

    @torch.no_grad()
    def discriminant(self, shrinkage: Shrinkage = "oas") -> tuple[Float[Tensor, "c d"], Float[Tensor, " c"]]:
        """Weights and biases of the linear discriminant, on this module's device in single precision.

        The mean over classes is taken from both: it ranks nothing, and without it scores are smaller and more precise.
        """
        means, num = on_host_in_double(self.means), self.degrees_of_freedom
        covariance = self._unpacked() / max(num, 1)
        factor = torch.linalg.cholesky(shrink(covariance, num, shrinkage))
        weight = torch.cholesky_solve(means.T, factor).T
        bias = -0.5 * (means * weight).sum(1)
        if not self._has_equal_counts:
            own, identity = shares(covariance, num, shrinkage)  # Σ = own C + identity I, so C = (Σ - identity I) / own
            inverse = torch.cholesky_inverse(factor).diagonal().sum()
            trace = (len(covariance) - identity * inverse) / own if own else covariance.trace() / identity
            bias += self._noise(trace)
        return (weight - weight.mean(0)).to(self.means), (bias - bias.mean()).to(self.means)

    @torch.no_grad()
    def projections(self, shrinkage: Shrinkage, spread: float) -> tuple[Float[Tensor, "c r d"], Float[Tensor, " c"]]:
        """P, and the scores that classes lose for their volume, in double precision on the host."""
        components = on_host_in_double(self.components)
        if not spread:
            return torch.zeros_like(components), components.new_zeros(self.num_classes)
        whitened = Whitened(components, torch.linalg.cholesky(self.covariance(shrinkage)))
        return whitened.root(spread).mT @ whitened.rows, whitened.log_volume(spread) / 2

    @property
    def _has_equal_counts(self) -> bool:
        """Whether all means are as good as each other, so that `_noise` changes no ranking."""
        return len(self.counts[self.counts > 0].unique()) < 2

    def _noise(self, trace: Tensor) -> Float[Tensor, " c"]:
        """¼ tr(Σ⁻¹ S / (n - C)) / n_c, from that trace; 0 for classes without images."""
        counts = on_host_in_double(self.counts)
        return torch.where(counts > 0, 0.25 * trace / counts.clamp(min=1), 0.0)

    def _unpacked(self) -> Float[Tensor, "d d"]:
        """The scatter as a symmetric matrix."""
        packed = on_host_in_double(self.scatter)
        upper = packed.new_zeros(self.feature_dim, self.feature_dim).masked_scatter_(self._is_packed(), packed)
        return upper + upper.triu(1).T

    def _pack(self, scatter: Float[Tensor, "d d"]) -> None:
        self.scatter.copy_(scatter[self._is_packed()])

    def _is_packed(self) -> Bool[Tensor, "d d"]:
        return torch.ones(self.feature_dim, self.feature_dim, dtype=torch.bool).triu()


def shares(covariance: Float[Tensor, "d d"], num: int, shrinkage: Shrinkage) -> tuple[float, float]:
    """1 - ρ and ρ tr(Σ)/d, with ρ given or by Oracle Approximating Shrinkage (Chen et al. 2010) for `num` rows."""
    d = len(covariance)
    scale = covariance.diagonal().mean()
    if shrinkage == "oas":
        mean_square = covariance.square().mean()
        numerator, denominator = mean_square + scale**2, (num + 1) * (mean_square - scale**2 / d)
        rho = 1.0 if denominator <= numerator else float(numerator / denominator)
    else:
        rho = shrinkage
    floor = float(scale) if scale > 0 else 1.0  # a single image, or images all alike
    return 1 - rho, max(rho, MIN_SHRINKAGE) * floor


def shrink(covariance: Float[Tensor, "d d"], num: int, shrinkage: Shrinkage) -> Float[Tensor, "d d"]:
    """(1 - ρ) Σ + ρ tr(Σ)/d I."""
    own, identity = shares(covariance, num, shrinkage)
    shrunk = own * covariance
    shrunk.diagonal().add_(identity)
    return shrunk
