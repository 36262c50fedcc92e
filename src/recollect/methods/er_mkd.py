"""ER-MKD (Michel et al. 2024): experience replay, and a moving average of the network as teacher.

L = L_CE(batch) + L_CE(replayed) + λ τ² KL(softmax(z̄/τ) || softmax(z/τ)) on both; the mean of both weights predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from recollect.core import Averaged
from recollect.errors import UserError
from recollect.methods._replay import ReplayConfig, ReplayLearner, together
from recollect.methods.learner import Method, Parameters, Scores, Setup, Update, num_parameters
from recollect.nets import Network
from recollect.precision import at_least_single
from recollect.streams import Batch, TaskInfo


@dataclass(frozen=True, kw_only=True)
class ERMKDConfig(ReplayConfig):
    distill: float = 2.0
    """Weight of the distillation, λ; searched in 2, 4."""
    temperature: float = 2.0
    """Temperature of the distillation, τ; searched in 2, 4."""
    ema_decay: float = 0.99
    """Decay of the teacher's moving average, 1 - α."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        loss = ce(logits[:now], batch.y, units)
        if drawn is not None:
            loss = loss + ce(logits[now:], drawn[0].labels, units)
        seen, teacher = self.network.seen(), at_least_single(self.teacher(x))
        distilled = distillation(logits[:, seen], teacher[:, seen], self.config.temperature)
        update(loss + self.config.distill * distilled)
        self.teacher.update(self.network)
        self.remember(batch)

    def scores(self, x: Tensor) -> Scores:
        mine, theirs = self.network.state_dict(), self.teacher.module.state_dict()
        mean = {name: value.lerp(theirs[name], 0.5) for name, value in mine.items() if value.is_floating_point()}
        logits: Tensor = functional_call(self.network, mean, (x,))
        return Scores(til=logits, cil=logits)

    def parameter_counts(self) -> Parameters:
        return Parameters(num_parameters(self.network, self.teacher), num_parameters(self.network))


def distillation(z: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher || student) at temperature τ, the mean over the batch; τ² keeps its gradient's size."""
    log_p, log_q = ((each / temperature).log_softmax(dim=1) for each in (z, teacher.detach()))
    return temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


METHODS = {"er-mkd": Method(ERMKD, ERMKDConfig(), "replay distilled from a moving average of the network")}
