"""ER-ACE (Caccia et al. 2022): L = L_CE(batch, classes of the current task) + L_CE(replayed batch, all seen).

The incoming batch pushes down no old class; only replay sets old and new classes against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recollect.methods._replay import ReplayConfig, ReplayLearner, together
from recollect.methods.learner import Method, Phase, Update
from recollect.streams import Batch, TaskInfo


class ERACE(ReplayLearner[ReplayConfig]):
    """Experience replay with an asymmetric cross-entropy."""

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        usual = self.classifier_phase(task, self.step, self.config.units)
        watched = self.classifier_phase(task, self.step, "task")  # the cross-entropy that incoming images train
        yield replace(usual, validate=watched.validate)

    def step(self, batch: Batch, update: Update) -> None:
        ce, now = self.network.cross_entropy, len(batch.y)
        drawn = self.replay(batch)
        if drawn is None:
            update(ce(self.network(batch.x), batch.y, "task"))
        else:
            past, view = drawn
            logits = self.network(together(batch, view))
            update(ce(logits[:now], batch.y, "task") + ce(logits[now:], past.labels, self.config.units))
        self.remember(batch)


METHODS = {
    "er-ace": Method(
        ERACE,
        ReplayConfig(),
        "replay; cross-entropy of new images over the current classes only",
        cost=1.8,
        colour="#a8435a",
        order=90,
        marker="v",
    )
}
