"""TAMiL (Bhat et al. 2023): a small attention per task on the features, a moving average that teaches on replay.

feature for task t: a_t(f) ⊙ f, a_t(f) = σ(W' relu(W f)), 512→64→512
L = L_CE(batch) + α L_CE(x', y') + β ||z(x') - z̄(x')||² - λ Σ_{i<t} E ||softmax(a_t(f)) - softmax(a_i(f))||_1
The task is known for the batch, for z̄, and at task-incremental reading; elsewhere the attention whose output is nearest
to the feature itself is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core import Averaged
from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods._replay import ReplayConfig, ReplayLearner, check_decay, flip, together
from recollect.methods.learner import (
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
class TAMiLConfig(ReplayConfig):
    replay: float = 0.5
    """Weight of the cross-entropy on replayed labels, α; the paper searches 0.5, 1."""
    distill: float = 0.2
    """Weight of the squared error to the average's logits, β; the paper searches 0.2, 0.5."""
    pairwise: float = 0.1
    """Weight of the distance between attentions, λ."""
    ema_frequency: float = 0.05
    """Probability of updating the average after a step, γ."""
    ema_decay: float = 0.999
    """Decay of the average, η."""
    attention_dim: int = 64
    """Hidden units of an attention module."""
    bias: bool = True
    """Biases in the attentions; the paper's parameter counts have none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(ema_decay=self.ema_decay)
        if not 0 <= self.ema_frequency <= 1:
            raise UserError(f"ema_frequency is a probability, got {self.ema_frequency}")
        if min(self.replay, self.distill, self.pairwise) < 0 or self.attention_dim < 1:
            raise UserError("replay, distill and pairwise cannot be negative, and attention_dim must be positive")


class TAMiL(ReplayLearner[TAMiLConfig]):
    """Task-specific attention modules in lifelong learning."""

    one_unit_per_class = False

    def __init__(self, network: Network, config: TAMiLConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.attentions = nn.ModuleList()
        self.teacher = Averaged(network, config.ema_decay)

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        self.teacher.grow(self.network)
        d, m, bias = self.network.feature_dim, self.config.attention_dim, self.config.bias
        with (self.setup.key / "attention" / task.index).initialising():
            attention = nn.Sequential(nn.Linear(d, m, bias), nn.ReLU(), nn.Linear(m, d, bias), nn.Sigmoid())
        self.attentions.append(attention.to(self.network.task_of_unit.device))

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        trained = self.attentions if self.config.units != "task" else self.attentions[task.index]
        usual = self.classifier_phase(task, self.step, self.config.units)
        groups = {"classifier": [*usual.groups["classifier"], *trained.parameters()]}

        def validate(batch: Batch) -> Validation:
            f = self.network.backbone(batch.x)
            logits = self.network.logits(self.attentions[task.index](f) * f)
            ce = self.network.cross_entropy(logits, batch.y, self.config.units)
            return Validation({"classifier": ce}, num_correct(logits[:, self.network.seen()], batch.y))

        yield replace(usual, groups=groups, validate=validate, training=[*usual.training, self.attentions])

    def step(self, batch: Batch, update: Update) -> None:
        ce, units, now = self.network.cross_entropy, self.config.units, len(batch.y)
        drawn = self.replay(batch)
        f = self.network.backbone(batch.x if drawn is None else together(batch, drawn[1]))
        attention = self.attentions[-1](f[:now])
        loss = ce(self.network.logits(attention * f[:now]), batch.y, units)
        for old in self.attentions[:-1]:
            apart = (attention.softmax(dim=1) - old(f[:now]).detach().softmax(dim=1)).abs().sum(dim=1)
            loss = loss - self.config.pairwise * apart.mean()
        if drawn is not None:
            past, view = drawn
            z = at_least_single(self.network.logits(self._nearest(f[now:]) * f[now:]))
            loss = loss + self.config.replay * ce(z, past.labels, units)
            loss = loss + self.config.distill * F.mse_loss(z, self._taught(view, past.tasks))
        update(loss)
        self.teacher.update(self.network, move=flip(batch, "ema", self.config.ema_frequency))
        self.remember(batch)

    def _all(self, f: Tensor) -> Tensor:
        return torch.stack([attention(f) for attention in self.attentions])  # [tasks, b, d]

    def _nearest(self, f: Tensor) -> Tensor:
        """Per sample the attention that reproduces the feature best."""
        outputs = self._all(f)
        chosen = (outputs - f).square().mean(dim=2).argmin(dim=0)
        return outputs[chosen, torch.arange(len(f), device=f.device)]

    @torch.no_grad()
    def _taught(self, x: Tensor, tasks: Tensor) -> Tensor:
        """The average's logits, with the attention of each sample's own task."""
        average = self.teacher.module
        assert isinstance(average, Network)
        f = average.backbone(x)
        attention = self._all(f)[tasks, torch.arange(len(f), device=f.device)]
        return at_least_single(average.logits(attention * f))

    def scores(self, x: Tensor) -> Scores:
        f = self.network.backbone(x)
        known = len(self.attentions)
        own = [head(self.attentions[t](f) * f if t < known else f) for t, head in enumerate(self.network.heads)]
        cil = self.network.logits(self._nearest(f) * f if known else f)
        return Scores(til=torch.cat(own, dim=1), cil=cil)

    def parameter_counts(self) -> Parameters:
        inference = num_parameters(self.network, self.attentions)
        return Parameters(inference + num_parameters(self.teacher), inference)


METHODS = {
    "tamil": Method(
        TAMiL,
        TAMiLConfig(),
        "task-specific attention, replay distilled from a moving average",
        cost=2.1,
        copies=2,
        contents={"attentions": "attention of a task", "teacher": "moving average of the network"},
        colour="#c9659e",
        order=110,
        marker="^",
    )
}
