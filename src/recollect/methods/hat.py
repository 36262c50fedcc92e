"""HAT, hard attention to the task (Serrà et al. 2018): each task learns which units of each layer it uses.

h_l ← a_l^t ⊙ h_l;  a_l^t = σ(s e_l^t), s from 1/s_max to s_max over the steps of an epoch, and s_max when reading
L = L_CE + λ Σ a^t (1 - a^{<t}) / Σ (1 - a^{<t});  a^{<t} = max_{j<t} a^j
ΔW_{l,ij} ← (1 - min(a_{l,i}^{<t}, u_{l,j}^{<t})) ΔW_{l,ij};  u = 1 for inputs that an earlier task uses, else 0
∂L/∂e ← ∂L/∂e · s_max (cosh(s e) + 1) / (s (cosh(e) + 1));  e is clipped to ±6
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.methods._subnetworks import SharedWeightsLearner
from recollect.methods._units import find_points, masking, used_inputs
from recollect.methods.learner import Method, Parameters, Phase, Setup, Update, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo

MAX_EMBEDDING, MAX_EXPONENT, TINY = 6, 50, 1e-7


@dataclass(frozen=True, kw_only=True)
class HATConfig:
    max_scale: float = 400.0
    """Final scale of the embeddings, s_max: the larger, the harder the attention."""
    penalty: float = 0.75
    """Weight of the number of units that no earlier task uses, λ."""
    embedding_rate: float = 10.0
    """Learning rate of the embeddings, relative to that of the weights."""

    def __post_init__(self) -> None:
        if self.max_scale < 1 or self.penalty < 0 or self.embedding_rate <= 0:
            raise UserError("max_scale is at least 1, penalty cannot be negative, embedding_rate is positive; "
                            f"got {self.max_scale}, {self.penalty}, {self.embedding_rate}")  # fmt: skip


class HAT(SharedWeightsLearner[HATConfig]):
    """Weights between units that earlier tasks use do not change; others are shared."""

    def __init__(self, network: Network, config: HATConfig, setup: Setup) -> None:
        points = find_points(network.backbone, setup.image_shape)
        super().__init__(network, config, setup, points)  # what cannot be masked is not shared
        self.points = points
        self.embeddings = nn.ModuleList()

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        embeddings = nn.ParameterList()
        for index, weight in enumerate(self.weights()):
            generator = (self.setup.key / "embedding" / task.index / index).generator()
            embeddings.append(torch.randn(len(weight), generator=generator).to(weight.device))
        self.embeddings.append(embeddings)

    def attention(self, task: int, scale: float) -> dict[str, Tensor]:
        """a_l^t, by the name of the layer; tiny values are 0, with their gradient, as subnormal numbers are slow."""
        attention = {}
        for layer, e in zip(self.layers.values(), self.embeddings[task].parameters(), strict=True):
            a = torch.sigmoid(scale * e)
            attention[layer] = a - (a * (a < TINY)).detach()
        return attention

    @torch.no_grad()
    def attention_before(self, task: int) -> dict[str, Tensor]:
        """a_l^{<t}, by the name of the layer."""
        earlier = [self.attention(index, self.config.max_scale) for index in range(task)]
        return {
            layer: torch.stack([torch.zeros_like(embedding), *(attention[layer] for attention in earlier)]).amax(0)
            for layer, embedding in zip(self.layers.values(), self.embeddings[task].parameters(), strict=True)
        }

    @torch.no_grad()
    def protection(self, before: dict[str, Tensor]) -> list[Tensor]:
        """min(a_{l,i}^{<t}, u_{l,j}^{<t}), in the shape of each weight but for the size of kernels."""
        backbone, protection = self.network.backbone, []
        used = used_inputs(backbone, self.setup.image_shape, self.points, before)
        for weight, layer in zip(self.weights(), self.layers.values(), strict=True):
            num_outputs, num_inputs, *kernel = weight.shape
            groups = used[layer].view(-1, num_inputs).to(weight.dtype)  # [groups, inputs of a group]
            inputs = groups.repeat_interleave(num_outputs // len(groups), dim=0)
            least = torch.minimum(before[layer][:, None], inputs)
            protection.append(least.view(num_outputs, num_inputs, *[1] * len(kernel)))
        return protection

    def masked(self, x: Tensor, attention: dict[str, Tensor], task: int | None = None) -> Tensor:
        """The features under attention, with a task's own tensors or those that the backbone holds."""
        with masking(self.network.backbone, self.points, attention):
            return self.run(x, {}, task)

    def subnetwork(self, x: Tensor, task: int) -> Tensor:
        return self.masked(x, self.attention(task, self.config.max_scale), task)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        before = self.attention_before(task.index)
        protection = self.protection(before) if task.index else []
        trained = [*self.embeddings[task.index].parameters(), *self.weights(), *self.own_parameters()]

        def forward(x: Tensor) -> Tensor:
            return self.masked(x, self.attention(task.index, self.config.max_scale))

        yield self.phase(task, partial(self.step, task, before, protection), forward, trained)

    def step(
        self, task: TaskInfo, before: dict[str, Tensor], protection: Sequence[Tensor], batch: Batch, update: Update
    ) -> None:
        s_max = self.config.max_scale
        s = 1 / s_max + (s_max - 1 / s_max) * batch.progress
        embeddings = [e.detach() for e in self.embeddings[task.index].parameters()]
        weights = [weight.detach() for weight in self.weights()]
        old_embeddings, old_weights = ([tensor.clone() for tensor in tensors] for tensors in (embeddings, weights))

        def compensate(gradients: list[Tensor]) -> None:
            for gradient, e in zip(gradients, embeddings, strict=False):
                exponent = (s * e).clamp(-MAX_EXPONENT, MAX_EXPONENT)
                gradient.mul_(s_max / s * (exponent.cosh() + 1) / (e.cosh() + 1))

        attention = self.attention(task.index, s)
        loss = self.task_loss(self.masked(batch.x, attention), batch, task)
        update(loss + self.config.penalty * newly_used(attention, before), compensate)
        for e, old in zip(embeddings, old_embeddings, strict=True):
            e.copy_(old + self.config.embedding_rate * (e - old)).clamp_(-MAX_EMBEDDING, MAX_EMBEDDING)
        if protection:  # of the step and not of the gradient: Adam's step does not shrink with the gradient
            for weight, old, share in zip(weights, old_weights, protection, strict=True):
                weight.lerp_(old, share.expand_as(weight))

    def parameter_counts(self) -> Parameters:
        counts, embeddings = super().parameter_counts(), num_parameters(self.embeddings)
        return Parameters(counts.training + embeddings, counts.inference + embeddings)


def newly_used(attention: dict[str, Tensor], before: dict[str, Tensor]) -> Tensor:
    """Σ a^t (1 - a^{<t}) / Σ (1 - a^{<t}): the share of free units that the task uses."""
    if not before:  # a frozen backbone
        return torch.zeros(())
    free = torch.cat([1 - value for value in before.values()])
    return (torch.cat([attention[layer] for layer in before]) * free).sum() / free.sum().clamp(min=1)


METHODS = {
    "hat": Method(
        HAT,
        HATConfig(),
        "hard attention per task over the units of each layer; is told the task",
        cost=1.3,
        copies=2,
        contents={"embeddings": "which units a task uses", "own_": "a task's own biases and normalisation"},
        colour="#7a5fc4",
        order=54,
        marker="D",
    )
}
