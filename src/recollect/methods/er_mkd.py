"""ER-MKD (Michel et al. 2024): experience replay, and a moving average of the network as teacher.

L = Σ L_CE + λ τ² KL(softmax(z̄/τ) || softmax(z/τ)) over the batch and the replayed batch, a mean each; the mean of both
networks' weights predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from recollect.core import Averaged
from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods._replay import ReplayConfig, ReplayLearner, check_decay, together
from recollect.methods.learner import Method, Parameters, Scores, Setup, Update, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo


@dataclass(frozen=True, kw_only=True)
class ERMKDConfig(ReplayConfig):
    distill: float = 2.0
    """Weight of the distillation, λ; the paper searches 2, 4."""
    temperature: float = 2.0
    """Temperature of the distillation, τ; the paper searches 2, 4."""
    ema_decay: float = 0.99
    """Decay of the teacher's moving average, 1 - α."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(ema_decay=self.ema_decay)
        if self.distill < 0 or self.temperature <= 0:
            raise UserError(
                f"distill cannot be negative, temperature must be positive; got {self.distill}, {self.temperature}"
            )


class ERMKD(ReplayLearner[ERMKDConfig]):
    """Replay with momentum knowledge distillation."""

    def __init__(self, network: Network, config: ERMKDConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.teacher = Averaged(network, config.ema_decay)

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        self.teacher.grow(self.network)

    def step(self, batch: Batch, update: Update) -> None:
        ce, units, now = self.network.cross_entropy, self.config.units, len(batch.y)
        drawn = self.replay(batch)
        x = batch.x if drawn is None else together(batch, drawn[1])
        logits = at_least_single(self.network(x))
        seen, teacher = self.network.seen(), at_least_single(self.teacher(x))
        loss = ce(logits[:now], batch.y, units)
        distilled = distillation(logits[:now, seen], teacher[:now, seen], self.config.temperature)
        if drawn is not None:
            loss = loss + ce(logits[now:], drawn[0].labels, units)
            distilled = distilled + distillation(logits[now:, seen], teacher[now:, seen], self.config.temperature)
        update(loss + self.config.distill * distilled)
        self.teacher.update(self.network)
        self.remember(batch)

    def scores(self, x: Tensor) -> Scores:
        logits: Tensor = functional_call(self.network, self._mean(self.network, self.teacher.module), (x,))
        return Scores(til=logits, cil=logits)

    def features(self, x: Tensor) -> tuple[Tensor, None]:
        assert isinstance(self.teacher.module, Network)
        backbone, theirs = self.network.backbone, self.teacher.module.backbone
        f: Tensor = functional_call(backbone, self._mean(backbone, theirs), (x,))
        return f, None

    @staticmethod
    def _mean(one: nn.Module, other: nn.Module) -> dict[str, Tensor]:
        """The mean of two networks' weights and statistics."""
        theirs = other.state_dict()
        return {k: v.lerp(theirs[k], 0.5) for k, v in one.state_dict().items() if v.is_floating_point()}

    def parameter_counts(self) -> Parameters:
        return Parameters(num_parameters(self.network, self.teacher), num_parameters(self.network))


def distillation(z: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher || student) at temperature τ, the mean over the batch; τ² keeps its gradient's size."""
    log_p, log_q = ((logits / temperature).log_softmax(dim=1) for logits in (z, teacher.detach()))
    return temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


METHODS = {
    "er-mkd": Method(
        ERMKD,
        ERMKDConfig(),
        "replay distilled from a moving average of the network",
        cost=2.3,
        copies=2,
        contents={"teacher": "moving average of the network"},
        colour="#d55e00",
        order=100,
        marker="s",
    )
}
