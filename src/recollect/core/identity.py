"""Which class, when nobody says which task: rules that rank the classes of all tasks together.

average      p(c) = softmax(w_t(f̂_t))_c / N for c of task t: the paper's rule. It cannot rank tasks of one class, whose
             softmax is always 1, and it favours small tasks.
class-means  p(c) ∝ softmax(w_t(f̂_t))_c exp(cos(f̂_t, μ_c) / τ), with μ_c the mean feature of class c when its task
             ended: the head says which class of its task, the mean whether it looks like that class at all. Cosines,
             because an estimate of an old feature is shorter than the feature was, and by distance every image would
             lie near old tasks. It stores one vector per class and no image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.precision import at_least_single

Identity = Literal["average", "class-means"]
TEMPERATURE = 0.2  # τ
IDENTITIES: tuple[Identity, ...] = ("average", "class-means")


def average(logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
    """Each task's softmax over its own units, concatenated and divided by the number of tasks."""
    return torch.cat([task.softmax(dim=1) for task in logits], dim=1) / len(logits)


class ClassMeans(nn.Module):
    """Class means in the feature space that each task is read in, grown task by task."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_tasks = 0

    def grow(self, num_classes: int) -> None:
        self.register_buffer(f"means_{self.num_tasks}", torch.zeros(num_classes, self.feature_dim))
        self.num_tasks += 1

    @torch.no_grad()
    def record(self, task: int, features: Float[Tensor, "n d"], labels: Tensor) -> None:
        """Take the means of a task's own features; `labels` count the task's classes from 0."""
        means = self.get_buffer(f"means_{task}")
        members = F.one_hot(labels, len(means)).to(features.dtype)  # [n, classes]
        means.copy_((members.T @ features) / members.sum(0).clamp(min=1)[:, None])

    @torch.no_grad()
    def shift(self, task: int, drift: Float[Tensor, " d"]) -> None:
        """Move a task's means with the space that it is read in."""
        self.get_buffer(f"means_{task}").add_(drift)

    def cosines(self, features: Sequence[Float[Tensor, "b d"]]) -> list[Float[Tensor, "b _"]]:
        """cos(f̂_t, μ_c) of every class of each task."""
        return [
            F.normalize(at_least_single(f), dim=1) @ F.normalize(self.get_buffer(f"means_{task}"), dim=1).T
            for task, f in enumerate(features)
        ]

    def evidence(
        self, features: Sequence[Float[Tensor, "b d"]], logits: Sequence[Float[Tensor, "b _"]]
    ) -> Float[Tensor, "b units"]:
        """log softmax(w_t(f̂_t))_c + cos(f̂_t, μ_c) / τ of every class, before they are made probabilities."""
        pairs = zip(logits, self.cosines(features), strict=True)
        return torch.cat([logit.log_softmax(dim=1) + cosine / TEMPERATURE for logit, cosine in pairs], dim=1)
