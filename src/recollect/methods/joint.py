"""Joint training, usually an upper bound: all tasks at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recollect.methods._heads import read_features, start_heads
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
        """Start all heads together, once the images of all tasks have been read."""
        if not self.is_gentle:
            return
        self._read.append((read_features(self.network.backbone, self.setup.image_shape, data), data.labels))
        if len(self._read) == self.network.num_tasks:
            f, labels = (torch.cat(parts) for parts in zip(*self._read, strict=True))
            self._read.clear()
            start_heads([*self.network.heads], f, labels)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, self.config.units)

    def step(self, batch: Batch, update: Update) -> None:
        update(self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


METHODS = {
    "joint": Method(
        Joint,
        BaselineConfig(),
        "trains on all tasks at once, usually an upper bound",
        colour="#808080",
        order=0,
        marker="D",
    )
}
