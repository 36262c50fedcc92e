"""Which class, when nobody says which task: rules that rank the classes of all tasks together.

average      p(c) = softmax(w_t(f̂_t))_c / N for c of task t: the paper's rule. It cannot rank tasks of one class, whose
             softmax is always 1, and it favours small tasks.
class-means  p(c) = softmax over all c of -||f̂_t - μ_c||² / σ_t², with μ_c the mean feature of class c when its task
             ended and σ_t² the mean squared distance of task t's images to their class mean: a common scale for the
             tasks' feature spaces. It stores one vector per class, one number per task, and no image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.precision import at_least_single

Identity = Literal["average", "class-means"]
EXACTLY = "donot_use_mm_for_euclid_dist"  # by differences; through products small distances lose their digits
IDENTITIES: tuple[Identity, ...] = ("average", "class-means")


def average(logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
    """Each task's softmax over its own units, concatenated and divided by the number of tasks."""
    return torch.cat([task.softmax(dim=1) for task in logits], dim=1) / len(logits)


class ClassMeans(nn.Module):
    """Class means in each task's own feature space, grown task by task."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_tasks = 0

    def grow(self, num_classes: int) -> None:
        self.register_buffer(f"means_{self.num_tasks}", torch.zeros(num_classes, self.feature_dim))
        self.register_buffer(f"scale_{self.num_tasks}", torch.ones(()))
        self.num_tasks += 1

    @torch.no_grad()
    def record(self, task: int, features: Float[Tensor, "n d"], labels: Tensor) -> None:
        """Take the means of a task's own features; `labels` count the task's classes from 0."""
        means = self.get_buffer(f"means_{task}")
        members = torch.nn.functional.one_hot(labels, len(means)).to(features.dtype)  # [n, classes]
        means.copy_((members.T @ features) / members.sum(0).clamp(min=1)[:, None])
        scale = (features - means[labels]).square().sum(1).mean()
        self.get_buffer(f"scale_{task}").copy_(scale)

    def scales(self, num_tasks: int) -> Float[Tensor, " tasks"]:
        """σ_t² of each task; one with one image a class has none and takes the others', or 1 where none has any."""
        scales = torch.stack([self.get_buffer(f"scale_{task}") for task in range(num_tasks)])
        usual = scales.sum() / (scales > 0).sum().clamp(min=1)
        return torch.where(scales > 0, scales, torch.where(usual > 0, usual, torch.ones_like(usual)))

    def closeness(self, features: Sequence[Float[Tensor, "b d"]]) -> Float[Tensor, "b units"]:
        """-||f̂_t - μ_c||² / σ_t² of every class from the estimated feature of each task, before the softmax."""
        scales = self.scales(len(features))
        found = [
            -torch.cdist(f, self.get_buffer(f"means_{task}"), compute_mode=EXACTLY).square() / scales[task]
            for task, f in enumerate(map(at_least_single, features))
        ]
        return torch.cat(found, dim=1)

    def forward(self, features: Sequence[Float[Tensor, "b d"]]) -> Float[Tensor, "b units"]:
        """Probabilities of every class."""
        return self.closeness(features).softmax(dim=1)
