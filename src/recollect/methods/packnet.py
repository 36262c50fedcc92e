"""PackNet (Mallya and Lazebnik 2018): tasks share one network; each takes some of its free weights and freezes them.

fit      L = L_CE over the free weights; those of earlier tasks are used and do not change
prune    of each layer's free weights, the share p with the smallest |w| becomes 0 and stays free; task t gets the rest
retrain  L = L_CE over the weights of task t
f_t      the network with the weights of tasks ≤ t, and 0 elsewhere
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from recollect.errors import UserError
from recollect.methods._subnetworks import SharedWeightsLearner
from recollect.methods.learner import Method, Phase, Setup, Update
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo

FREE = torch.iinfo(torch.int32).max


@dataclass(frozen=True, kw_only=True)
class PackNetConfig:
    prune: float = 0.75
    """Share of a layer's free weights that remains free for later tasks, p."""
    retrain: float = 0.5
    """Epochs of retraining after pruning, relative to those of training."""

    def __post_init__(self) -> None:
        if not 0 <= self.prune < 1 or self.retrain < 0:
            raise UserError(f"prune lies in [0, 1) and retrain cannot be negative; got {self.prune} and {self.retrain}")


class PackNet(SharedWeightsLearner[PackNetConfig]):
    """While a task trains, the backbone itself is the sub-network: weights that are free for later tasks are 0."""

    def __init__(self, network: Network, config: PackNetConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        for index, weight in enumerate(self.weights()):
            self.register_buffer(f"owner_{index}", torch.full_like(weight, FREE, dtype=torch.int32))

    def owners(self) -> list[Tensor]:
        """The task that each weight belongs to, or FREE."""
        return [self.get_buffer(f"owner_{index}") for index in range(len(self.layers))]

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        backbone = self.network.backbone
        trained = [*self.weights(), *self.own_parameters()]
        yield self.phase(task, partial(self.step, task, FREE), backbone, trained)
        if not any(bool((owner == task.index).any()) for owner in self.owners()):  # not yet, where a run resumes
            self.prune(task.index)
        epochs = math.ceil(self.config.retrain * self.setup.schedule.epochs)
        if epochs:
            retrain = self.phase(task, partial(self.step, task, task.index), backbone, trained, "retrain")
            yield replace(retrain, schedule=replace(retrain.schedule, epochs=epochs))

    def step(self, task: TaskInfo, owner_trained: int, batch: Batch, update: Update) -> None:
        """Train the weights of one owner; others have a gradient of zero, so Adam leaves them at the same bits."""

        def hold(gradients: list[Tensor]) -> None:
            for gradient, owner in zip(gradients, self.owners(), strict=False):
                gradient.masked_fill_(owner != owner_trained, 0)

        update(self.task_loss(self.network.backbone(batch.x), batch, task), hold)

    @torch.no_grad()
    def prune(self, task: int) -> None:
        """Give the largest free weights of each layer to the task and set the others to 0."""
        for weight, owner in zip(self.weights(), self.owners(), strict=True):
            flat = owner.flatten()
            free = (flat == FREE).nonzero()[:, 0]
            num_kept = len(free) - round(self.config.prune * len(free))
            order = weight.flatten()[free].abs().sort(descending=True, stable=True).indices
            flat[free[order[:num_kept]]] = task
            owner.copy_(flat.view(owner.shape))
            weight.masked_fill_(owner == FREE, 0)

    def subnetwork(self, x: Tensor, task: int) -> Tensor:
        kept = {
            name: weight * (owner <= task)
            for name, weight, owner in zip(self.layers, self.weights(), self.owners(), strict=True)
        }
        return self.run(x, kept, task)


METHODS = {
    "packnet": Method(
        PackNet,
        PackNetConfig(),
        "prunes and freezes a part of the network for each task; is told the task",
        cost=1.5,
        copies=2,
        contents={"owner_": "task that each weight belongs to", "own_": "a task's own biases and normalisation"},
        colour="#d55e00",
        order=51,
        marker="D",
    )
}
