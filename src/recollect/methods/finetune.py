"""Fine-tuning, the lower bound: cross-entropy on the current task and no protection of the old ones."""

from __future__ import annotations

from collections.abc import Iterator

from recollect.methods.learner import BaselineConfig, Learner, Method, Phase, Update
from recollect.streams import Batch, TaskInfo


class Finetune(Learner[BaselineConfig]):
    """L = L_CE(D_t)."""

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, self.config.units)

    def step(self, batch: Batch, update: Update) -> None:
        update(self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


METHODS = {
    "finetune": Method(
        Finetune,
        BaselineConfig(),
        "trains on the current task only, the lower bound",
        colour="#808080",
        order=10,
        marker="v",
    )
}
