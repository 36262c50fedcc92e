"""SupSup (Wortsman et al. 2020): a network with fixed random weights; each task learns which of them to use.

f_t(x) = f(x; W ⊙ M_t);  M_t = 1 at the share k of each layer's weights with the largest |S_t|, and 0 elsewhere
L = L_CE(w_t ∘ f_t, D_t) over S_t and w_t, with ∂L/∂|S_t| = ∂L/∂M_t (straight-through); W never moves
task unknown: the task is argmin_t H(softmax(w_t(f_t(x)))), the least entropy
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.methods._subnetworks import SharedWeightsLearner
from recollect.methods.learner import Method, Parameters, Phase, Setup, Update, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo


@dataclass(frozen=True, kw_only=True)
class SupSupConfig:
    density: float = 0.5
    """Share of each layer's weights that a task uses, k."""
    signed: bool = True
    """Replace each weight by its sign times a constant per layer, √(2 / (k · inputs)); false keeps the weights."""

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise UserError(f"density lies in (0, 1], got {self.density}")


class SupSup(SharedWeightsLearner[SupSupConfig]):
    """Supermasks in superposition. Scores are only needed while their task is learned; the masks remain."""

    def __init__(self, network: Network, config: SupSupConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.mask_scores = nn.ParameterList(torch.zeros_like(weight) for weight in self.weights())
        if config.signed:
            with torch.no_grad():
                for weight in self.weights():
                    weight.copy_(weight.sign() * math.sqrt(2 / (config.density * weight[0].numel())))

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        for index, weight in enumerate(self.weights()):
            self.register_buffer(f"mask_{task.index}_{index}", torch.ones_like(weight, dtype=torch.bool))

    @torch.no_grad()
    def prepare_task(self, task: TaskInfo, data: TaskData) -> None:
        for index, scores in enumerate(self.mask_scores):
            generator = (self.setup.key / "scores" / task.index / index).generator()
            drawn = torch.rand(scores.shape, generator=generator) * 2 - 1
            scores.copy_(drawn / math.sqrt(scores[0].numel()))

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.phase(task, partial(self.step, task), self.newest, [*self.own_parameters(), *self.mask_scores])

    def step(self, task: TaskInfo, batch: Batch, update: Update) -> None:
        """Norms are listed as trained so that their statistics follow the task; a gradient of zero holds the rest."""

        def hold(gradients: list[Tensor]) -> None:
            for gradient in gradients[: len(self.own_parameters())]:
                gradient.zero_()

        update(self.task_loss(self.newest(batch.x), batch, task), hold)

    def newest(self, x: Tensor) -> Tensor:
        """f_t(x) of the task that is being learned."""
        return self.run(x, {
            name: weight * straight_through(scores, self.config.density)
            for name, weight, scores in zip(self.layers, self.weights(), self.mask_scores, strict=True)
        })  # fmt: skip

    @torch.no_grad()
    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        super().end_task(task, data)
        for index, scores in enumerate(self.mask_scores):
            self.get_buffer(f"mask_{task.index}_{index}").copy_(top_share(scores, self.config.density))

    def subnetwork(self, x: Tensor, task: int) -> Tensor:
        return self.run(x, {
            name: weight * self.get_buffer(f"mask_{task}_{index}")
            for index, (name, weight) in enumerate(zip(self.layers, self.weights(), strict=True))
        }, task)  # fmt: skip

    def rank(self, logits: Sequence[Tensor]) -> Tensor:
        """Classes of the task with the least entropy first, then those of the next, by probability within a task."""
        entropies = torch.stack([-(z.softmax(1) * z.log_softmax(1)).sum(1) for z in logits], dim=1)  # [b, tasks]
        places = (entropies[:, None, :] < entropies[:, :, None]).sum(2)  # tasks of less entropy
        return torch.cat([z.softmax(1) - places[:, t, None] for t, z in enumerate(logits)], dim=1)

    def parameter_counts(self) -> Parameters:
        counts = super().parameter_counts()
        return Parameters(counts.training + num_parameters(self.mask_scores), counts.inference)


def top_share(scores: Tensor, share: float) -> Tensor:
    """Whether a score is among the largest in absolute value; at least one is."""
    num_kept = max(1, round(share * scores.numel()))
    mask = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    mask[scores.abs().flatten().sort(descending=True, stable=True).indices[:num_kept]] = True
    return mask.view_as(scores)


def straight_through(scores: Tensor, share: float) -> Tensor:
    """The mask of the largest |scores|, with the gradient of |scores|."""
    size = scores.abs()
    return top_share(scores.detach(), share) + (size - size.detach())


METHODS = {
    "supsup": Method(
        SupSup,
        SupSupConfig(),
        "a mask per task over fixed random weights; is told the task, or infers it",
        cost=1.2,
        copies=4,
        contents={
            "mask_scores": "scores of the weights for the newest task",
            "mask_": "which weights a task uses",
            "own_": "a task's own statistics of BatchNorm",
        },
        colour="#c9659e",
        order=53,
        marker="s",
    )
}
