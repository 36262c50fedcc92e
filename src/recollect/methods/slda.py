"""Linear discriminants of frozen features, whose statistics are exact whatever the order and the number of tasks.

log p(c | x) = μ_cᵀ Σ⁻¹ f(x) - ½ μ_cᵀ Σ⁻¹ μ_c + constant

slda   the backbone's first weights (streaming LDA, Hayes and Kanan 2020)
fsa    the backbone trained on the first task (first-session adaptation, Panos et al. 2023)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recollect.core.components import MAX_COMPONENTS
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
        if not 0 <= self.components <= (MAX_COMPONENTS if self.shrinkage == -1 else 0):
            raise UserError(
                f"components is a number from 0 to {MAX_COMPONENTS}, and 0 unless shrinkage=-1, as held-out images "
                f"choose their weight; got {self.components} with shrinkage={self.shrinkage}"
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
