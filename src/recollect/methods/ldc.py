"""Drift-compensated Gaussians on a network that continues to train (after LDC, Gomez-Villa et al. 2024).

fit       L_CE(w_t ∘ f_t, D_t) + α L_FE(f_t, D_t, f_{t-1})
end       f_t ≈ W f_{t-1} + b on D_t; means and covariance of old classes are carried through it
reading   log p(c | x) = μ_cᵀ Σ⁻¹ f_t(x) - ½ μ_cᵀ Σ⁻¹ μ_c + constant
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recollect.core import Frozen, feature_estimation
from recollect.errors import UserError
from recollect.methods._discriminant import SharedGaussians, ShrinkageConfig
from recollect.methods._heads import read_features
from recollect.methods.learner import Method, Parameters, Setup, Update, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo


@dataclass(frozen=True, kw_only=True)
class LDCConfig(ShrinkageConfig):
    alpha: float = 1.0
    """Weight of the drift loss, α; 0 is plain fine-tuning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0:
            raise UserError(f"alpha cannot be negative, got {self.alpha}")


class LDC(SharedGaussians[LDCConfig]):
    """Holds f_{t-1} while task t is learned: a copy from when the task begins, since nothing has moved by then."""

    def __init__(self, network: Network, config: LDCConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.previous: Frozen | None = None

    def begin_task(self, task: TaskInfo) -> None:
        if task.index:
            self.previous = Frozen(self.network.backbone)
        super().begin_task(task)

    def is_trained_on(self, task: TaskInfo) -> bool:
        return True

    def step(self, batch: Batch, update: Update) -> None:
        f = self.network.backbone(batch.x)
        loss = self.network.cross_entropy(self.network.logits(f), batch.y, "task")
        if self.previous is not None and self.config.alpha:
            loss = loss + self.config.alpha * feature_estimation(f, self.previous.teacher_forward(batch.x))
        update(loss)

    @torch.no_grad()
    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        if self.previous is not None:
            shape = self.setup.image_shape
            old = read_features(self.previous.module, shape, data)
            self.discriminant.follow(old, read_features(self.network.backbone, shape, data))
        super().end_task(task, data)

    def parameter_counts(self) -> Parameters:
        counts = super().parameter_counts()
        teacher = num_parameters(self.previous) if self.previous is not None else 0
        return Parameters(counts.training + teacher, counts.inference)


METHODS = {
    "ldc": Method(
        LDC,
        LDCConfig(),
        "Gaussians of old classes follow the drift of a trained network",
        cost=1.4,
        copies=2,
        contents={"discriminant": "class means and covariances", "previous": "frozen copy of the network"},
        colour="#c9659e",
        order=127,
        marker="o",
    )
}
