"""Joint training, the upper bound: all tasks at once."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from recollect.methods.learner import BaselineConfig, Learner, Method, Phase
from recollect.streams import Batch, TaskInfo


class Joint(Learner[BaselineConfig]):
    """L = L_CE(D_1 ∪ … ∪ D_N)."""

    together = True

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.loss, self.config.units)

    def loss(self, batch: Batch) -> Tensor:
        return self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units)


METHODS = {"joint": Method(Joint, BaselineConfig(), "all tasks at once, the upper bound")}
