"""A-GEM (Chaudhry et al. 2018): where the gradient g conflicts with the replay gradient r, take away the conflict.

g ← g - (g·r / r·r) r  if g·r < 0, else g.  The memory is offered each image once, when its task ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from recollect.memory import Memory
from recollect.methods._replay import ReplayConfig
from recollect.methods.learner import Learner, Method, Phase, Setup, Update
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo, split_rows


class AGEM(Learner[ReplayConfig]):
    """L = L_CE(batch), its gradient kept from raising the loss on a batch of the past."""

    def __init__(self, network: Network, config: ReplayConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.memory = Memory(config.memory, setup.image_shape)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        def step(batch: Batch, update: Update) -> None:
            reference = self._reference(batch, update)
            loss = self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units)
            update(loss, None if reference is None else lambda gradients: project(gradients, reference))

        yield self.classifier_phase(task, step, self.config.units)

    def _reference(self, batch: Batch, update: Update) -> Sequence[Tensor] | None:
        past = self.memory.sample(len(batch.y), batch.rng("replay"))
        if past is None:
            return None
        logits = self.network(batch.augment(past, "replayed view"))
        return update.gradients(self.network.cross_entropy(logits, past.labels, self.config.units))

    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        rows, slots = self.memory.admit(len(data), (data.key / "memory").generator())
        for batch, chunk in zip(data.batches(rows), split_rows(slots, data.batch_size), strict=True):
            self.memory.write(chunk, batch.images, batch.y, task.index)


def project(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> None:
    """Make the gradients' dot product with the reference non-negative, in place."""
    dot = torch.stack([(g * r).sum() for g, r in zip(gradients, reference, strict=True)]).sum()
    norm = torch.stack([r.square().sum() for r in reference]).sum()
    share = torch.where(dot < 0, dot / norm, torch.zeros_like(dot))
    for g, r in zip(gradients, reference, strict=True):
        g.sub_(share * r)


METHODS = {
    "agem": Method(
        AGEM,
        ReplayConfig(),
        "projects the gradient when it conflicts with the replay gradient",
        cost=2.0,
        colour="#c9659e",
        order=60,
        marker="X",
    )
}
