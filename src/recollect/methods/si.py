"""Synaptic intelligence (Zenke et al. 2017): what each weight did for the loss while it was learned.

L = L_CE(batch, units of the current task) + c Σ_j Ω_j (θ_j - θ*_j)²
ω_j ← ω_j - g_j Δθ_j each step, g the gradient of L_CE;  Ω_j ← Ω_j + max(ω_j, 0) / ((θ_j - θ*_j)² + ξ) when a task ends
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
class SIConfig(TrainingConfig):
    penalty: float = 10.0
    """Weight of the quadratic penalty, c."""
    damping: float = 1e-3
    """Keeps the importance of weights that did not move finite, ξ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 0 or self.damping <= 0:
            raise UserError(
                f"penalty cannot be negative and damping must be positive, got {self.penalty}, {self.damping}"
            )


class SI(Learner[SIConfig]):
    """Protects the backbone; old heads are frozen. Keeps three numbers for each weight, and no data."""

    def __init__(self, network: Network, config: SIConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        for index, parameter in enumerate(network.learnable()):
            self.register_buffer(f"path_{index}", torch.zeros_like(parameter))
            self.register_buffer(f"importance_{index}", torch.zeros_like(parameter))
            self.register_buffer(f"anchor_{index}", parameter.detach().clone())

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, "task")

    def step(self, batch: Batch, update: Update) -> None:
        parameters = self.network.learnable()
        pulls = [2 * self.config.penalty * self._each("importance", i) * (p.detach() - self._each("anchor", i))
                 for i, p in enumerate(parameters)]  # fmt: skip
        before = [parameter.detach().clone() for parameter in parameters]
        descent: list[Tensor] = []

        def add_penalty(gradients: list[Tensor]) -> None:
            descent.extend(g.clone() for g in gradients[: len(parameters)])
            for g, pull in zip(gradients, pulls, strict=False):
                g.add_(pull)

        update(self.network.cross_entropy(self.network(batch.x), batch.y, "task"), add_penalty)
        for index, (parameter, old, g) in enumerate(zip(parameters, before, descent, strict=True)):
            self._each("path", index).sub_(g * (parameter.detach() - old))

    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        for index, parameter in enumerate(self.network.learnable()):
            path, anchor = self._each("path", index), self._each("anchor", index)
            moved = (parameter.detach() - anchor).square()
            self._each("importance", index).add_(path.clamp(min=0) / (moved + self.config.damping))
            path.zero_()
            anchor.copy_(parameter.detach())

    def _each(self, name: str, index: int) -> Tensor:
        return self.get_buffer(f"{name}_{index}")

    def parameter_counts(self) -> Parameters:
        """ω, Ω and θ* are held while training."""
        counts = super().parameter_counts()
        return Parameters(counts.training + sum(b.numel() for b in self.buffers(recurse=False)), counts.inference)


METHODS = {
    "si": Method(
        SI,
        SIConfig(),
        "quadratic penalty weighted by each weight's contribution to the loss; keeps no data",
        cost=1.2,
        copies=4,
        contents={
            "importance_": "importance of weights",
            "path_": "importance of weights",
            "anchor_": "weights after the last task",
        },
        colour="#c9659e",
        order=40,
        marker="D",
    )
}
