"""FeCAM (Goswami et al. 2023): Mahalanobis distances on frozen features, with a covariance for each class.

z = √f(x);   S_c ← S_c + γ₁ V₁ I + γ₂ V₂ (1 - I);   R_c = the correlations of S_c
score_c = -(ẑ - μ̂_c)ᵀ R_c⁻¹ (ẑ - μ̂_c), with ẑ and μ̂_c of length 1

V₁ and V₂ are the mean diagonal and the mean other entry of S_c. Negative features keep their sign under the root.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core import ClassStatistics
from recollect.errors import UserError
from recollect.methods._discriminant import FrozenConfig, StatisticsLearner
from recollect.methods.learner import Method, Setup
from recollect.nets import Network
from recollect.streams import TaskInfo


@dataclass(frozen=True, kw_only=True)
class FeCAMConfig(FrozenConfig):
    diagonal: float = 1.0
    """Shrinkage of the diagonal of the covariances, γ₁."""
    off_diagonal: float = 1.0
    """Shrinkage of the other entries of the covariances, γ₂."""

    def __post_init__(self) -> None:
        if self.diagonal <= 0 or self.off_diagonal < 0:
            raise UserError(
                f"diagonal must be positive and off_diagonal not negative, got {self.diagonal} and {self.off_diagonal}"
            )


class FeCAM(StatisticsLearner[FeCAMConfig]):
    """Stores a mean and the upper triangle of a covariance for each class."""

    def __init__(self, network: Network, config: FeCAMConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.gaussians = nn.ModuleList()
        self._factors: list[Tensor] = []

    def is_trained_on(self, task: TaskInfo) -> bool:
        return self.config.adapt and task.index == 0

    def grow(self, num_classes: int) -> None:
        for _ in range(num_classes):
            gaussian = ClassStatistics(self.network.feature_dim)
            gaussian.grow(1)
            self.gaussians.append(gaussian.to(self.network.task_of_unit.device))

    def transform(self, f: Tensor) -> Tensor:
        return f.sign() * f.abs().sqrt()

    def collect(self, z: Tensor, labels: Tensor) -> None:
        for c in labels.unique().tolist():
            own = z[labels == c]
            self.gaussians[c].add(own, labels.new_zeros(len(own)))

    def refresh(self) -> None:
        self._factors.clear()

    def rank(self, z: Tensor) -> Tensor:
        gaussians = [gaussian for gaussian in self.gaussians if isinstance(gaussian, ClassStatistics)]
        if len(self._factors) != len(gaussians):
            self._factors = [self._whitening(gaussian).to(z) for gaussian in gaussians]
        centred = [F.normalize(z, dim=1) - F.normalize(gaussian.means, dim=1) for gaussian in gaussians]
        pairs = zip(centred, self._factors, strict=True)
        return -torch.stack([(away @ factor).square().sum(1) for away, factor in pairs], dim=1)

    def _whitening(self, gaussian: ClassStatistics) -> Tensor:
        """A factor A with R⁻¹ = A Aᵀ."""
        covariance = gaussian.covariance(0.0)
        d = len(covariance)
        identity = torch.eye(d, dtype=covariance.dtype)
        v1 = covariance.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
        v2 = (covariance.sum() - covariance.diagonal().sum()) / max(d * (d - 1), 1)
        covariance = covariance + self.config.diagonal * v1 * identity
        covariance = covariance + self.config.off_diagonal * v2 * (1 - identity)
        deviations = covariance.diagonal().sqrt()
        correlations = covariance / deviations[:, None] / deviations
        eigenvalues, vectors = torch.linalg.eigh(correlations)
        factor: Tensor = vectors / eigenvalues.clamp(min=1e-6).sqrt()
        return factor


METHODS = {
    "fecam": Method(
        FeCAM,
        FeCAMConfig(),
        "Mahalanobis distances with a covariance for each class",
        cost=0.2,
        contents={"gaussians": "class means and covariances"},
        colour="#a8435a",
        order=126,
        marker="X",
    )
}
