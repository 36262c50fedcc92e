"""Experience replay (Chaudhry et al. 2019): L = L_CE(batch) + L_CE(replayed batch), from a reservoir."""

from __future__ import annotations

from recollect.methods._replay import ReplayConfig, ReplayLearner, together
from recollect.methods.learner import Method, Update
from recollect.streams import Batch


class ER(ReplayLearner[ReplayConfig]):
    """Stream and replayed images go through the network together."""

    def step(self, batch: Batch, update: Update) -> None:
        ce, units, now = self.network.cross_entropy, self.config.units, len(batch.y)
        drawn = self.replay(batch)
        if drawn is None:
            update(ce(self.network(batch.x), batch.y, units))
        else:
            past, view = drawn
            logits = self.network(together(batch, view))
            update(ce(logits[:now], batch.y, units) + ce(logits[now:], past.labels, units))
        self.remember(batch)


METHODS = {
    "er": Method(
        ER,
        ReplayConfig(),
        "cross-entropy on a replayed batch from a reservoir",
        cost=1.8,
        colour="#d55e00",
        order=70,
        marker="o",
    )
}
