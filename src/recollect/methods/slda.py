"""Linear discriminants of frozen features, whose statistics are exact whatever the order and the number of tasks.

log p(c | x) = μ_cᵀ Σ⁻¹ f(x) - ½ μ_cᵀ Σ⁻¹ μ_c + constant

slda   the backbone's first weights (streaming LDA, Hayes and Kanan 2020)
fsa    the backbone trained on the first task (first-session adaptation, Panos et al. 2023)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recollect.errors import UserError
from recollect.methods._discriminant import FrozenConfig, SharedGaussians, ShrinkageConfig
from recollect.methods.learner import Method, Setup
from recollect.nets import Network
from recollect.streams import OMITTED, TaskInfo


@dataclass(frozen=True, kw_only=True)
class SLDAConfig(ShrinkageConfig, FrozenConfig):
    """A covariance that is shrunk, and a backbone that is frozen."""

    components: int = field(default=0, metadata=OMITTED)
    """Principal components stored of each class, as `rfe-plus` does and the papers do not; needs shrinkage=-1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.components < 0 or (self.components and self.shrinkage != -1):
            raise UserError(
                "components cannot be negative, and is above 0 only with shrinkage=-1, as held-out images choose their "
                f"weight; got {self.components} with shrinkage={self.shrinkage}"
            )


class SLDA(SharedGaussians[SLDAConfig]):
    def __init__(self, network: Network, config: SLDAConfig, setup: Setup) -> None:
        super().__init__(network, config, setup, config.components)

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
