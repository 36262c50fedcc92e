"""Expansion, which the paper argues against: for each task a separate small network h_t with its own head.

L = L_CE(v_t ∘ h_t, D_t);  nothing is shared, nothing is forgotten, and nothing is strong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core import AuxiliaryExtractor, average
from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods.learner import (
    Learner,
    Method,
    Parameters,
    Phase,
    Scores,
    Setup,
    Update,
    Validation,
    num_correct,
    num_parameters,
)
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo


@dataclass(frozen=True, kw_only=True)
class ExpansionConfig:
    auxiliary_dim: int = 128
    """Output dimension of each network, dim(h)."""

    def __post_init__(self) -> None:
        if self.auxiliary_dim < 2 or self.auxiliary_dim % 2:
            raise UserError(f"auxiliary_dim must be even and positive, got {self.auxiliary_dim}")


class Expansion(Learner[ExpansionConfig]):
    """The run's backbone is not used; it only tells which units belong to which task."""

    one_unit_per_class = False

    def __init__(self, network: Network, config: ExpansionConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.experts = nn.ModuleList()

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        with (self.setup.key / "expert" / task.index).initialising():
            extractor = AuxiliaryExtractor(self.config.auxiliary_dim, self.setup.image_shape[0])
            expert = nn.Sequential(extractor, nn.Linear(self.config.auxiliary_dim, task.num_classes))
        self.experts.append(expert.to(self.network.task_of_unit.device))

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        expert, first_unit = self.experts[task.index], self.network.units(task.index).start

        def step(batch: Batch, update: Update) -> None:
            update(F.cross_entropy(at_least_single(expert(batch.x)), batch.y - first_unit))

        def validate(batch: Batch) -> Validation:
            logits, y = at_least_single(expert(batch.x)), batch.y - first_unit
            return Validation({"expert": F.cross_entropy(logits, y)}, num_correct(logits, y))

        yield Phase("fit", {"expert": list(expert.parameters())}, step, validate, self.setup.schedule, [expert])

    def scores(self, x: Tensor) -> Scores:
        logits = [at_least_single(expert(x)) for expert in self.experts]
        for task in range(len(logits), len(self.network.heads)):  # fixed heads of future tasks say nothing yet
            units = self.network.units(task)
            logits.append(x.new_zeros(len(x), units.stop - units.start))
        return Scores(til=torch.cat(logits, dim=1), cil=average(logits))

    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        own = [expert[0](x) for expert in self.experts if isinstance(expert, nn.Sequential)]
        return own[-1], own

    def parameter_counts(self) -> Parameters:
        return Parameters(num_parameters(self.experts), num_parameters(self.experts))


METHODS = {
    "expansion": Method(
        Expansion,
        ExpansionConfig(),
        "a separate small network with its own head for each task",
        cost=0.3,
        contents={"experts": "expert of a task"},
        colour="#808080",
        order=50,
        marker="s",
    )
}
