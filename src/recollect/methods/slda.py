"""Linear discriminants of frozen features, whose statistics are exact whatever the order and the number of tasks.

log p(c | x) = μ_cᵀ Σ⁻¹ f(x) - ½ μ_cᵀ Σ⁻¹ μ_c + constant

slda   the backbone's first weights (streaming LDA, Hayes and Kanan 2020)
fsa    the backbone trained on the first task (first-session adaptation, Panos et al. 2023)
"""

from __future__ import annotations

from dataclasses import dataclass

from recollect.methods._discriminant import FrozenConfig, SharedGaussians, ShrinkageConfig
from recollect.methods.learner import Method
from recollect.streams import TaskInfo


@dataclass(frozen=True, kw_only=True)
class SLDAConfig(ShrinkageConfig, FrozenConfig):
    """A covariance that is shrunk, and a backbone that is frozen."""


class SLDA(SharedGaussians[SLDAConfig]):
    def is_trained_on(self, task: TaskInfo) -> bool:
        return self.config.adapt and task.index == 0


STATISTICS = {"discriminant": "class means and covariances"}
METHODS = {
    "slda": Method(
        SLDA,
        SLDAConfig(),
        "linear discriminant on frozen features",
        cost=0.1,
        contents=STATISTICS,
        colour="#b07d00",
        order=123,
        marker="D",
    ),
    "fsa": Method(
        SLDA,
        SLDAConfig(adapt=True),
        "slda on a backbone trained on the first task",
        cost=0.3,
        contents=STATISTICS,
        colour="#7a5fc4",
        order=124,
        marker="s",
    ),
}
