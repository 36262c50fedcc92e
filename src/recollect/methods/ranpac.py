"""RanPAC (McDonnell et al. 2023) without its adapters: random projection, ReLU and ridge regression on frozen features.

h(x) = ReLU(Pᵀ f(x));  G = Σ h hᵀ, B = Σ h 1_yᵀ;  W = (G + λI)⁻¹ B

P is drawn once and never trained. λ is chosen again after every task: G and B of four fifths of its images are added to
those of earlier tasks, and the λ of least squared error on the other fifth is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.core import held_out
from recollect.device import on_host_in_double
from recollect.errors import UserError
from recollect.methods._discriminant import FrozenConfig, LinearLearner
from recollect.methods.learner import Method, Setup
from recollect.nets import Network
from recollect.streams import TaskInfo

RIDGES = tuple(10.0**exponent for exponent in range(-8, 10))


@dataclass(frozen=True, kw_only=True)
class RanPACConfig(FrozenConfig):
    random_dim: int = 5000
    """Number of random features, M; 10,000 in the paper."""

    def __post_init__(self) -> None:
        if self.random_dim < 1:
            raise UserError(f"random_dim must be positive, got {self.random_dim}")


class RanPAC(LinearLearner[RanPACConfig]):
    """Stores G and B; between tasks nothing else."""

    projection: Tensor
    gram: Tensor
    targets: Tensor

    def __init__(self, network: Network, config: RanPACConfig, setup: Setup) -> None:
        super().__init__(network, config, setup, config.random_dim)
        generator = (setup.key / "random projection").generator()
        m = config.random_dim
        self.register_buffer("projection", torch.randn(network.feature_dim, m, generator=generator))
        self.register_buffer("gram", torch.zeros(m, m))
        self.register_buffer("targets", self.class_weights.clone())  # Bᵀ, [classes, m]
        self._batches: list[tuple[Tensor, Tensor]] = []

    def is_trained_on(self, task: TaskInfo) -> bool:
        return self.config.adapt and task.index == 0

    def grow(self, num_classes: int) -> None:
        super().grow(num_classes)
        self.targets = F.pad(self.targets, (0, 0, 0, num_classes))

    def transform(self, f: Tensor) -> Tensor:
        return (f @ self.projection).relu()

    def collect(self, z: Tensor, labels: Tensor) -> None:
        self._batches.append((z, labels))

    def refresh(self) -> None:
        h = torch.cat([z for z, _ in self._batches])
        y = F.one_hot(torch.cat([labels for _, labels in self._batches]), len(self.targets)).to(h.dtype)
        self._batches.clear()
        ridge = self._choose_ridge(h, y)  # by statistics without this task's
        self.gram += h.T @ h
        self.targets += y.T @ h
        gram = on_host_in_double(self.gram)
        gram.diagonal().add_(ridge)
        self.class_weights.copy_(torch.linalg.solve(gram, on_host_in_double(self.targets).T).T)

    def _choose_ridge(self, h: Tensor, y: Tensor) -> float:
        """λ of the least squared error on a fifth of the task's images."""
        held = held_out(y.argmax(1))
        if not bool(held.any()):
            return RIDGES[-1]
        gram = on_host_in_double(self.gram + h[~held].T @ h[~held])
        eigenvalues, vectors = torch.linalg.eigh(gram)
        rotated = vectors.T @ on_host_in_double(self.targets + y[~held].T @ h[~held]).T
        seen, truth = on_host_in_double(h[held]) @ vectors, on_host_in_double(y[held])

        def error(ridge: float) -> float:
            return float((seen @ (rotated / (eigenvalues + ridge)[:, None]) - truth).square().mean())

        return min(RIDGES, key=error)


METHODS = {
    "ranpac": Method(
        RanPAC,
        RanPACConfig(),
        "ridge regression on random projections of frozen features",
        cost=0.2,
        contents={
            "projection": "random projection",
            "gram": "Gram matrix of all images' random features",
            "targets": "sums of each class's random features",
            "class_weights": "ridge regression",
            "class_biases": "ridge regression",
        },
        colour="#d55e00",
        order=125,
        marker="^",
    )
}
