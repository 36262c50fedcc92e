"""Learning without forgetting (Li and Hoiem 2016): new images, old outputs.

L = L_CE(batch, units of the current task) + λ Σ_{i<t} H(softmax(z̄_i/T), softmax(z_i/T))
z̄_i are the outputs of head i before task t
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from recollect.core import Frozen
from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods.learner import Learner, Method, Parameters, Phase, Setup, TrainingConfig, Update, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo


@dataclass(frozen=True, kw_only=True)
class LwFConfig(TrainingConfig):
    distill: float = 1.0
    """Weight of the distillation of each old head, λ."""
    temperature: float = 2.0
    """Temperature, T."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distill < 0 or self.temperature <= 0:
            raise UserError(
                f"distill cannot be negative, temperature must be positive; got {self.distill}, {self.temperature}"
            )


class LwF(Learner[LwFConfig]):
    """Old heads train on what they said before; keeps a copy of the network while a task is learned, and no data."""

    def __init__(self, network: Network, config: LwFConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.previous: Frozen | None = None

    def begin_task(self, task: TaskInfo) -> None:
        if task.index:
            self.previous = Frozen(self.network)
        super().begin_task(task)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        old = [self.network.units(t) for t, size in enumerate(self.network.sizes()[: task.index]) if size]

        def step(batch: Batch, update: Update) -> None:
            logits = at_least_single(self.network(batch.x))
            loss = self.network.cross_entropy(logits, batch.y, "task")
            if self.previous is not None:
                before, temperature = at_least_single(self.previous(batch.x)), self.config.temperature
                for units in old:
                    kept = soft_cross_entropy(logits[:, units], before[:, units], temperature)
                    loss = loss + self.config.distill * kept
            update(loss)

        usual = self.classifier_phase(task, step, "task")
        heads = self.network.heads[: task.index + 1]
        groups = {"classifier": [*self.network.learnable(), *heads.parameters()]}
        yield replace(usual, groups=groups, training=[*usual.training, heads])

    def parameter_counts(self) -> Parameters:
        count = num_parameters(self.network)
        return Parameters(count + (num_parameters(self.previous) if self.previous else 0), count)


def soft_cross_entropy(z: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Cross-entropy to softened targets, the mean over the batch."""
    p = (target.detach() / temperature).softmax(dim=1)
    return -(p * (z / temperature).log_softmax(dim=1)).sum(dim=1).mean()


METHODS = {
    "lwf": Method(
        LwF,
        LwFConfig(),
        "distils the old heads' outputs on new images; keeps no data",
        cost=1.3,
        copies=2,
        contents={"previous": "frozen copy of the network"},
        colour="#a8435a",
        order=20,
        marker="o",
    )
}
