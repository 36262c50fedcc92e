"""Joint training, the upper bound: all tasks at once.

A pretrained backbone is trained as `rfe-plus` trains it: the heads start as the discriminant of its features, and
BatchNorm keeps its statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from recollect.methods._discriminant import read_features, start_heads
from recollect.methods.learner import BaselineConfig, Learner, Method, Phase, Setup, Update
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo


class Joint(Learner[BaselineConfig]):
    """L = L_CE(D_1 ∪ … ∪ D_N)."""

    together = True

    def __init__(self, network: Network, config: BaselineConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self._read: list[tuple[Tensor, Tensor]] = []

    def prepare_task(self, task: TaskInfo, data: TaskData) -> None:
        if not self.network.is_pretrained:
            return
        self._read.append((read_features(self.network.backbone, self.setup, data), data.labels))
        if len(self._read) == self.network.num_tasks:
            f, labels = (torch.cat(parts) for parts in zip(*self._read, strict=True))
            start_heads([*self.network.heads], f, labels)
            self._read.clear()

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        phase = self.classifier_phase(task, self.step, self.config.units)
        yield replace(phase, training=phase.training[1:]) if self.network.is_pretrained else phase

    def step(self, batch: Batch, update: Update) -> None:
        update(self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


METHODS = {
    "joint": Method(
        Joint,
        BaselineConfig(),
        "trains on all tasks at once, the upper bound",
        colour="#808080",
        order=0,
        marker="D",
    )
}
