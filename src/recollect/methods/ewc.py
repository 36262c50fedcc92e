"""Online EWC (Schwarz et al. 2018, after Kirkpatrick et al. 2017): weights that mattered stay where old tasks put them.

L = L_CE(batch, units of the current task) + λ/2 Σ_j F_j (θ_j - θ*_j)²
F ← γ F + E[(∂ log p(y|x) / ∂θ)²] and θ* ← θ when a task ends
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.errors import UserError
from recollect.methods.learner import Learner, Method, Parameters, Phase, Setup, TrainingConfig, Update
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo


@dataclass(frozen=True, kw_only=True)
class EWCConfig(TrainingConfig):
    penalty: float = 1000.0
    """Weight of the quadratic penalty, λ."""
    decay: float = 1.0
    """Factor of the old Fisher information at each new task, γ."""
    fisher_samples: int = 500
    """Training images on which the Fisher information of a task is estimated, one gradient each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 0 or not 0 <= self.decay <= 1 or self.fisher_samples < 1:
            raise UserError("penalty cannot be negative, decay lies in [0, 1], fisher_samples must be positive; "
                            f"got {self.penalty}, {self.decay}, {self.fisher_samples}")  # fmt: skip


class EWC(Learner[EWCConfig]):
    """Protects the backbone; old heads are frozen. Keeps two numbers for each weight, and no data."""

    def __init__(self, network: Network, config: EWCConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        for index, parameter in enumerate(network.learnable()):
            self.register_buffer(f"fisher_{index}", torch.zeros_like(parameter))
            self.register_buffer(f"anchor_{index}", parameter.detach().clone())

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        def step(batch: Batch, update: Update) -> None:
            loss = self.network.cross_entropy(self.network(batch.x), batch.y, "task")
            update(loss + self.penalty() if task.index else loss)

        yield self.classifier_phase(task, step, "task")

    def penalty(self) -> Tensor:
        """λ/2 Σ F (θ - θ*)²."""
        terms = [
            (self.get_buffer(f"fisher_{index}") * (parameter - self.get_buffer(f"anchor_{index}")).square()).sum()
            for index, parameter in enumerate(self.network.learnable())
        ]
        return self.config.penalty / 2 * torch.stack(terms).sum() if terms else torch.zeros(())

    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        chosen = torch.randperm(len(data), generator=(data.key / "fisher").generator())[: self.config.fisher_samples]
        parameters = [parameter.requires_grad_(True) for parameter in self.network.learnable()]
        totals = [torch.zeros_like(parameter) for parameter in parameters]
        with torch.autocast(data.device.type, enabled=False):  # squares of small gradients
            for batch in data.batches(chosen):
                for x, y in zip(batch.x.split(1), batch.y.split(1), strict=True):
                    loss = self.network.cross_entropy(self.network(x), y, "task")
                    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
                    for total, g in zip(totals, gradients, strict=True):
                        total += g.square() / len(chosen)
        for index, (parameter, total) in enumerate(zip(parameters, totals, strict=True)):
            self.get_buffer(f"fisher_{index}").mul_(self.config.decay).add_(total)
            self.get_buffer(f"anchor_{index}").copy_(parameter.detach())

    def parameter_counts(self) -> Parameters:
        """F and θ* are held while training."""
        counts = super().parameter_counts()
        return Parameters(counts.training + sum(b.numel() for b in self.buffers(recurse=False)), counts.inference)


METHODS = {
    "ewc": Method(
        EWC,
        EWCConfig(),
        "quadratic penalty weighted by Fisher information; keeps no data",
        cost=1.1,
        copies=3,
        contents={"fisher_": "importance of weights", "anchor_": "weights after the last task"},
        colour="#b07d00",
        order=30,
        marker="^",
    )
}
