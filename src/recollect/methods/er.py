"""Experience replay (Chaudhry et al. 2019): L = L_CE(batch) + L_CE(replayed batch), from a reservoir."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.memory import Memory
from recollect.methods.learner import BaselineConfig, Learner, Method, Phase, Setup
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo


@dataclass(frozen=True, kw_only=True)
class ERConfig(BaselineConfig):
    memory: int = 500
    """Samples in the reservoir, |B|."""


class ER(Learner[ERConfig]):
    """Stream and replayed images go through the network together, so BatchNorm sees both."""

    def __init__(self, network: Network, config: ERConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.memory = Memory(config.memory, setup.image_shape)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.loss, self.config.units, after=self.remember)

    def loss(self, batch: Batch) -> Tensor:
        ce, units = self.network.cross_entropy, self.config.units
        past = self.memory.sample(len(batch.y), batch.rng("replay"))
        if past is None:
            return ce(self.network(batch.x), batch.y, units)
        logits = self.network(torch.cat([batch.x, batch.augmented(past.images, "replayed view")]))
        now, then = logits.split([len(batch.y), len(past.labels)])
        return ce(now, batch.y, units) + ce(then, past.labels, units)

    def remember(self, batch: Batch) -> None:
        rows, slots = self.memory.admit(len(batch.y), batch.rng("reservoir"))
        labels = batch.y[rows]
        self.memory.write(slots, batch.images[rows], labels, self.network.task_of_unit[labels])


METHODS = {"er": Method(ER, ERConfig(), "cross-entropy on a replayed batch from a reservoir")}
