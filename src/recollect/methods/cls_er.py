"""CLS-ER (Arani et al. 2022): two moving averages, a plastic and a stable one, teach on replay.

L = L_CE(batch) + γ L_CE(x', y') + λ ||z(x') - z̄(x')||², z̄ per sample from the average that gives y' the higher
probability. Each average moves with its own probability after a step; the stable one predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.core import Averaged
from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods._replay import ReplayConfig, ReplayLearner, check_decay, flip, together
from recollect.methods.learner import Method, Parameters, Scores, Setup, Update, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo


@dataclass(frozen=True, kw_only=True)
class CLSERConfig(ReplayConfig):
    plastic_frequency: float = 0.5
    """Probability of updating the plastic average after a step, r_p; the paper searches 0.5, 0.8."""
    stable_frequency: float = 0.2
    """Probability of updating the stable average after a step, r_s; the paper searches 0.2, 0.5."""
    plastic_decay: float = 0.999
    """Decay of the plastic average, α_p."""
    stable_decay: float = 0.999
    """Decay of the stable average, α_s."""
    distill: float = 0.2
    """Weight of the squared error to the averages' logits, λ; the paper searches 0.2, 0.5."""
    replay: float = 1.0
    """Weight of the cross-entropy on replayed labels, γ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(plastic_decay=self.plastic_decay, stable_decay=self.stable_decay)
        for name in ("plastic_frequency", "stable_frequency"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is a probability, got {getattr(self, name)}")
        if self.distill < 0 or self.replay < 0:
            raise UserError(f"distill and replay cannot be negative, got {self.distill} and {self.replay}")


class CLSER(ReplayLearner[CLSERConfig]):
    """Complementary learning systems: a working, a plastic and a stable network."""

    def __init__(self, network: Network, config: CLSERConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.plastic = Averaged(network, config.plastic_decay)
        self.stable = Averaged(network, config.stable_decay)

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        self.plastic.grow(self.network)
        self.stable.grow(self.network)

    def step(self, batch: Batch, update: Update) -> None:
        ce, units, now = self.network.cross_entropy, self.config.units, len(batch.y)
        drawn = self.replay(batch)
        if drawn is None:
            update(ce(self.network(batch.x), batch.y, units))
        else:
            past, view = drawn
            logits = at_least_single(self.network(together(batch, view)))
            target = better(at_least_single(self.stable(view)), at_least_single(self.plastic(view)), past.labels)
            replayed = ce(logits[now:], past.labels, units)
            distilled = F.mse_loss(logits[now:], target)
            update(ce(logits[:now], batch.y, units) + self.config.replay * replayed + self.config.distill * distilled)
        self.plastic.update(self.network, move=flip(batch, "plastic", self.config.plastic_frequency))
        self.stable.update(self.network, move=flip(batch, "stable", self.config.stable_frequency))
        self.remember(batch)

    def scores(self, x: Tensor) -> Scores:
        logits = self.stable(x)
        return Scores(til=logits, cil=logits)

    def features(self, x: Tensor) -> tuple[Tensor, None]:
        assert isinstance(self.stable.module, Network)
        return self.stable.module.backbone(x), None

    def parameter_counts(self) -> Parameters:
        return Parameters(num_parameters(self.network, self.plastic, self.stable), num_parameters(self.stable))


def better(stable: Tensor, plastic: Tensor, labels: Tensor) -> Tensor:
    """Per sample the logits that give the true class the higher probability."""
    confidence = [z.softmax(dim=1).gather(1, labels[:, None]) for z in (stable, plastic)]
    return torch.where(confidence[0] > confidence[1], stable, plastic)


METHODS = {
    "cls-er": Method(
        CLSER,
        CLSERConfig(),
        "replay distilled from plastic and stable moving averages",
        cost=2.4,
        copies=3,
        contents={"stable": "moving average of the network", "plastic": "moving average of the network"},
        colour="#a8435a",
        order=120,
        marker="D",
    )
}
