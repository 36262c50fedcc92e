"""The rules for unknown tasks that store Gaussians of classes: forward, anchored and lda."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.core.discriminant import Discriminant
from recollect.core.identity import Average, ClassMeans, Identity, Lesson, Reading, Rule, log_softmaxes
from recollect.device import at_least_single


class Forward(Rule):
    """One discriminant in today's space."""

    ranks_within_tasks, follows_drift, needs_estimates = True, True, False

    def __init__(self, feature_dim: int, shrinkage: float, head_weight: float, num_components: int = 0) -> None:
        super().__init__()
        self.head_weight = head_weight  # λ
        self.first = 0  # class of the newest task
        self.discriminant = Discriminant(feature_dim, shrinkage, num_components)

    def grow(self, num_classes: int) -> None:
        self.first = self.discriminant.statistics.num_classes
        self.discriminant.grow(num_classes)

    @torch.no_grad()
    def learn(self, lesson: Lesson) -> None:
        if lesson.before is not None:
            self.discriminant.follow(lesson.before.f, lesson.now.f, lesson.views)
        self.add(lesson)

    @torch.no_grad()
    def add(self, lesson: Lesson) -> None:
        self.discriminant.add(lesson.now.f, lesson.labels + self.first, lesson.views)
        self.discriminant.refresh()

    def keep(self, kept: Sequence[Bool[Tensor, " _"]]) -> None:
        self.first = sum(int(classes.sum()) for classes in kept[:-1])
        self.discriminant.keep(torch.cat([*kept]))
        self.discriminant.refresh()

    def draw(
        self, units: Int[Tensor, " n"], generator: torch.Generator, *, is_frozen: bool, has_first: bool
    ) -> Callable[[float], Reading]:
        means, deviations = self.discriminant.draw(units, generator)
        return lambda factor: Reading(means + factor * deviations, is_frozen=is_frozen)

    def evidence(self, reading: Reading, logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
        scores: Tensor = self.discriminant(at_least_single(reading.f))
        return scores.log_softmax(dim=1) + self.head_weight * log_softmaxes(logits)


class Anchored(Rule):
    """Two discriminants, of today's space and of one that never moves, whose statistics are exact."""

    ranks_within_tasks, follows_drift, needs_estimates = True, True, False

    def __init__(self, feature_dim: int, shrinkage: float, head_weight: float, num_components: int) -> None:
        super().__init__()
        self.today = Forward(feature_dim, shrinkage, head_weight, num_components)
        self.anchor = Discriminant(feature_dim, num_components=num_components)

    def grow(self, num_classes: int) -> None:
        self.today.grow(num_classes)
        self.anchor.grow(num_classes)

    @torch.no_grad()
    def learn(self, lesson: Lesson) -> None:
        if lesson.before is not None:
            self.today.discriminant.follow(lesson.before.f, lesson.now.f, lesson.views)
        if lesson.now.first is not None or not lesson.is_trained_on:  # the anchor was not trained on the images
            self.anchor.choose(*self._plain(lesson))
        self._count(lesson)

    @torch.no_grad()
    def add(self, lesson: Lesson) -> None:
        self._count(lesson)

    def _count(self, lesson: Lesson) -> None:
        self.today.discriminant.add(lesson.now.f, lesson.labels + self.today.first, lesson.views)
        z, labels = self._plain(lesson)
        if lesson.now.mirrored is None:
            self.anchor.add(z, labels)
        else:
            self.anchor.add(torch.cat([z, lesson.now.mirrored]), labels.repeat(2), views=2)
        self.refresh(reads_today=not lesson.now.is_frozen)

    def _plain(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        num = len(lesson.labels) // lesson.views  # images, unaugmented
        return lesson.now.at_anchor[:num], lesson.labels[:num] + self.today.first

    def refresh(self, *, reads_today: bool = True) -> None:
        """Recompute the discriminants from the current statistics; one temperature and one spread serve both.

        That of today's space is not read until a task that moved it has ended.
        """
        for discriminant in (self.anchor, self.today.discriminant) if reads_today else (self.anchor,):
            discriminant.refresh(self.anchor.temperature, self.anchor.spread)

    def keep(self, kept: Sequence[Bool[Tensor, " _"]]) -> None:
        self.today.keep(kept)
        self.anchor.keep(torch.cat([*kept]))
        self.refresh()

    def draw(
        self, units: Int[Tensor, " n"], generator: torch.Generator, *, is_frozen: bool, has_first: bool
    ) -> Callable[[float], Reading]:
        if is_frozen:
            means, deviations = self.anchor.draw(units, generator)
            return lambda factor: Reading(means + factor * deviations, is_frozen=True)
        todays, moves = self.today.discriminant.draw(units, generator, self.anchor.spread)
        if not has_first:  # both spaces are one
            return lambda factor: Reading(todays + factor * moves)
        means, deviations = self.anchor.draw(units, generator)
        return lambda factor: Reading(todays + factor * moves, first=means + factor * deviations)

    def evidence(self, reading: Reading, logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
        scores: Tensor = self.anchor(at_least_single(reading.at_anchor))
        if reading.is_frozen:
            return scores.log_softmax(dim=1)
        both = (scores + self.today.discriminant(at_least_single(reading.f))) / 2
        tasks = both.log_softmax(dim=1).split([task.shape[1] for task in logits], dim=1)
        return torch.cat([self._within(*task) for task in zip(tasks, logits, strict=True)], dim=1)

    def _within(self, own: Float[Tensor, "b c"], logits: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        """Log-probabilities of a task's classes, with those of its head; their sum stays as it is."""
        if not own.shape[1]:
            return own  # all its classes were forgotten
        classes = own + self.today.head_weight * logits.log_softmax(dim=1)
        return own.logsumexp(dim=1, keepdim=True) + classes.log_softmax(dim=1)


class Nested(Rule):
    """A discriminant in each task's own space, over its classes and all later ones."""

    ranks_within_tasks = follows_drift = True

    def __init__(self, feature_dim: int, shrinkage: float, head_weight: float) -> None:
        super().__init__()
        self.feature_dim, self.shrinkage, self.head_weight = feature_dim, shrinkage, head_weight
        self.sizes: list[int] = []
        self.spaces = nn.ModuleList()

    def grow(self, num_classes: int) -> None:
        self.spaces.append(Discriminant(self.feature_dim, self.shrinkage))
        for space in self.spaces:
            space.grow(num_classes)  # type: ignore[operator]
        self.sizes.append(num_classes)

    @torch.no_grad()
    def learn(self, lesson: Lesson) -> None:
        for task, (space, now) in enumerate(zip(self.spaces, lesson.now.estimates, strict=True)):
            assert isinstance(space, Discriminant)
            if lesson.before is not None and task < len(lesson.before.estimates):
                space.follow(lesson.before.estimates[task], now, lesson.views)
            space.add(now, lesson.labels + sum(self.sizes[task:-1]), lesson.views)
            space.refresh()

    def keep(self, kept: Sequence[Bool[Tensor, " _"]]) -> None:
        self.sizes = [int(classes.sum()) for classes in kept]
        for task, space in enumerate(self.spaces):
            assert isinstance(space, Discriminant)
            space.keep(torch.cat([*kept[task:]]))
            space.refresh()

    def evidence(self, reading: Reading, logits: Sequence[Float[Tensor, "b _"]]) -> Float[Tensor, "b units"]:
        later, scores = torch.zeros_like(logits[0][:, :1]), []
        for space, size, estimate in zip(self.spaces, self.sizes, reading.estimates, strict=True):
            own, others = space(at_least_single(estimate)).log_softmax(dim=1).tensor_split([size], dim=1)
            scores.append(later + own)
            later = later + others.logsumexp(dim=1, keepdim=True) if others.shape[1] else later
        return torch.cat(scores, dim=1) + self.head_weight * log_softmaxes(logits)


def make_rule(
    identity: Identity, feature_dim: int, *, stride: int, shrinkage: float, head_weight: float, num_components: int = 0
) -> Rule:
    """The rule of that name; only `anchored` has images to choose by how much components of classes count."""
    if identity == "average":
        return Average()
    if identity == "class-means":
        return ClassMeans(feature_dim, follows_drift=stride > 1)
    if identity == "lda":
        return Nested(feature_dim, shrinkage, head_weight)
    if identity == "anchored":
        return Anchored(feature_dim, shrinkage, head_weight, num_components)
    return Forward(feature_dim, shrinkage, head_weight)
