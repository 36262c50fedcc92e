"""Joint training, the upper bound: all tasks at once."""

from __future__ import annotations

from collections.abc import Iterator

from recollect.methods.learner import BaselineConfig, Learner, Method, Phase, Update
from recollect.streams import Batch, TaskInfo


class Joint(Learner[BaselineConfig]):
    """L = L_CE(D_1 ∪ … ∪ D_N)."""

    together = True

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, self.config.units)

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
