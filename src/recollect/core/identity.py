"""Which class, when nobody says which task: rules that rank the classes of all tasks together.

average      p(c) = softmax(w_t(f̂_t))_c / N for c of task t: the paper's rule. It cannot rank tasks of one class, whose
             softmax is always 1, and it favours small tasks.
class-means  p(c) ∝ softmax(w_t(f̂_t))_c exp(cos(f̂_t, μ_c) / τ), μ_c the mean feature of class c when its task ended.
forward      p(c) ∝ N(z; μ_c, Σ) softmax(w_t(f̂_t))_c^λ with z = f(x) today. When a task ends, Gaussians of old classes
             follow the space: an affine map from f_{t-1} to f_t on the task's images carries them along.
anchored     p(c) ∝ (N(z; μ_c, Σ) N(g(x); μ'_c, Σ'))^(1/(2T)), g the network as it was after the first task, which never
             moves. Held-out images choose T. Within a task, softmax(w_t(f̂_t))_c^λ is a factor too: heads know only
             their own task, so they do not decide between tasks. Until a task moves f, it is N(g(x); μ'_c, Σ') alone:
             streaming LDA on frozen features.
lda          Gaussians of task t in every space k ≤ t: p(c) = Π_{k<t} P_k(later than k) P_t(c), each P_k a discriminant
             inside one space. When a task ends, those of space k follow the estimates f̂_k of the task's images.

The last three store means and covariances and no image. Their priors are equal, whatever the size of a task, and they
rank classes within a task too. Which rule is better where: docs/methods/rfe.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.core.discriminant import Discriminant
from recollect.device import at_least_single

Identity = Literal["average", "class-means", "forward", "anchored", "lda"]
IDENTITIES: tuple[Identity, ...] = ("average", "class-means", "forward", "anchored", "lda")
TEMPERATURE = 0.2  # τ of class-means


@dataclass(frozen=True)
class Reading:
    """What the network says of some images."""

    f: Float[Tensor, "b d"]
    """Today's features."""
    estimates: Sequence[Float[Tensor, "b d"]] = ()
    """f̂_t, the features in the space of each task."""
    first: Float[Tensor, "a d"] | None = None
    """Those of the network that `anchored` keeps, in a lesson of the unaugmented images alone; None if they are
    today's, and in what a lesson says of the network before."""
    is_frozen: bool = False
    """Whether no task has ever moved the network."""
    mirrored: Float[Tensor, "a d"] | None = None
    """In a lesson, those of the unaugmented images mirrored, by the network that `anchored` keeps."""

    @property
    def at_anchor(self) -> Float[Tensor, "a d"]:
        return self.f if self.first is None else self.first


@dataclass(frozen=True)
class Lesson:
    """What a rule learns from when a task has ended: its images read today and as the network read them before it."""

    labels: Int[Tensor, " n"]
    """Classes of the task, counted from 0."""
    now: Reading
    before: Reading | None = None
    """None in the first task, and where the rule does not need it."""
    views: int = 1
    """All images are read so many times, first unaugmented, then augmented."""
    is_trained_on: bool = True
    """Whether today's network was trained on these images."""
    in_todays_space: Sequence[int] = ()
    """Earlier tasks without a space of their own, which are read in today's (`stride` above 1)."""


class Rule(nn.Module, ABC):
    """Ranks classes by what was learned when their tasks ended."""

    ranks_within_tasks = False
    """Whether its scores also serve where the task is known; else the heads' do."""
    learns = True
    """Whether it stores anything when a task ends."""
    follows_drift = False
    """Whether it learns from how the network read a task's images before the task."""
    needs_estimates = True
    """Whether it reads features in the spaces of earlier tasks, beside the heads that do."""

    @abstractmethod
    def grow(self, num_classes: int) -> None:
        """Make room for a task."""

    @abstractmethod
    def learn(self, lesson: Lesson) -> None:
        """Take what is stored of the task that has just ended."""

    @abstractmethod
    def evidence(self, reading: Reading, logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
        """A score of every class, the larger the likelier; `logits` are the heads' of each task."""

    @abstractmethod
    def keep(self, kept: Sequence[Bool[Tensor, " _"]]) -> None:
        """Drop what is stored of all other classes; there is a mask of the classes of each task."""

    def add(self, lesson: Lesson) -> None:
        """Count further images of the newest task; rules that store no number of images leave them out."""
        return

    def draw(
        self, units: Int[Tensor, " n"], generator: torch.Generator, *, is_frozen: bool, has_first: bool
    ) -> Callable[[float], Reading] | None:
        """Pseudo-features of these units, for any factor of their deviation; None if the rule has none.

        `has_first`: whether the network that `anchored` keeps is another than today's.
        """
        return None

    def read_buffers(self) -> list[Tensor]:
        """What of its state is needed to read, and not only to learn more."""
        discriminants = [module for module in self.modules() if isinstance(module, Discriminant)]
        return [buffer for module in discriminants for buffer in module.read_buffers()] or list(self.buffers())


def average(logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
    """Each task's softmax over its own units, concatenated and divided by the number of tasks."""
    return torch.cat([task.softmax(dim=1) for task in logits], dim=1) / len(logits)


class Average(Rule):
    """Stores nothing."""

    learns = needs_estimates = False

    def grow(self, num_classes: int) -> None: ...

    def learn(self, lesson: Lesson) -> None: ...

    def keep(self, kept: Sequence[Bool[Tensor, " _"]]) -> None: ...

    def evidence(self, reading: Reading, logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
        return average(logits)


class ClassMeans(Rule):
    """Class means in the feature space that each task is read in; cosines, as estimates are shorter than features."""

    def __init__(self, feature_dim: int, *, follows_drift: bool = False) -> None:
        super().__init__()
        self.feature_dim, self.follows_drift, self.num_tasks = feature_dim, follows_drift, 0

    def grow(self, num_classes: int) -> None:
        self.register_buffer(f"means_{self.num_tasks}", torch.zeros(num_classes, self.feature_dim))
        self.num_tasks += 1

    @torch.no_grad()
    def learn(self, lesson: Lesson) -> None:
        features = lesson.now.estimates[-1]
        means = self.get_buffer(f"means_{self.num_tasks - 1}")
        members = F.one_hot(lesson.labels, len(means)).to(features.dtype)  # [n, classes]
        means.copy_((members.T @ features) / members.sum(0).clamp(min=1)[:, None])
        for task in lesson.in_todays_space:
            assert lesson.before is not None
            drift = lesson.now.estimates[task] - lesson.before.estimates[task]
            self.get_buffer(f"means_{task}").add_(drift.mean(0))

    def keep(self, kept: Sequence[Bool[Tensor, " _"]]) -> None:
        for task, classes in enumerate(kept):
            self.register_buffer(f"means_{task}", self.get_buffer(f"means_{task}")[classes])

    def evidence(self, reading: Reading, logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
        cosines = [
            F.normalize(at_least_single(f), dim=1) @ F.normalize(self.get_buffer(f"means_{task}"), dim=1).T
            for task, f in enumerate(reading.estimates)
        ]
        return log_softmaxes(logits) + torch.cat(cosines, dim=1) / TEMPERATURE


def log_softmaxes(logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
    """Each task's log-softmax over its own units, side by side."""
    return torch.cat([task.log_softmax(dim=1) for task in logits], dim=1)
