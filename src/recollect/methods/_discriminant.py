"""What methods share that read features by class statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.core import Discriminant, folded
from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods.learner import Learner, Parameters, Phase, Reader, Scores, Setup, Update, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo


@dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    adapt: bool = False
    """Train the backbone on the first task before freezing it; otherwise it keeps its initial weights."""


@dataclass(frozen=True, kw_only=True)
class ShrinkageConfig:
    shrinkage: float = -1.0
    """Weight of the identity in the covariance, from 0 to 1; -1 chooses it on a fifth of each task's images."""

    def __post_init__(self) -> None:
        if self.shrinkage != -1 and not 0 <= self.shrinkage <= 1:
            raise UserError(f"shrinkage is a share from 0 to 1, or -1 for an automatic choice; got {self.shrinkage}")


Config = TypeVar("Config")
Shrunk = TypeVar("Shrunk", bound=ShrinkageConfig)


class StatisticsLearner(Learner[Config], ABC):
    """Each task adds to statistics of its features, by which the classes of all tasks are ranked together.

    The network's own heads serve training alone. A pretrained backbone is trained as `rfe-plus` trains it: the head
    starts as the discriminant of the features, and BatchNorm keeps its statistics.
    """

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        if self.network.fixed_heads:
            self.grow(sum(self.network.sizes()) if task.index == 0 else 0)
        else:
            self.grow(self.network.sizes()[-1])

    @abstractmethod
    def is_trained_on(self, task: TaskInfo) -> bool:
        """Whether the backbone is trained on this task; on others it is frozen."""

    @abstractmethod
    def grow(self, num_classes: int) -> None:
        """Make room for more classes."""

    @abstractmethod
    def collect(self, z: Tensor, labels: Tensor) -> None:
        """Add a batch of features to the statistics."""

    @abstractmethod
    def refresh(self) -> None:
        """Make what is read from the statistics, once a task's features are all there."""

    @abstractmethod
    def rank(self, z: Tensor) -> Tensor:
        """A score for every class."""

    def transform(self, f: Tensor) -> Tensor:
        """The feature z that the statistics are of, from the backbone's."""
        return f

    @property
    def is_gentle(self) -> bool:
        return self.network.is_pretrained

    def prepare_task(self, task: TaskInfo, data: TaskData) -> None:
        if self.is_trained_on(task):
            super().prepare_task(task, data)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        if self.is_trained_on(task):
            yield self.classifier_phase(task, self.step, "task")

    def step(self, batch: Batch, update: Update) -> None:
        update(self.network.cross_entropy(self.network(batch.x), batch.y, "task"))

    @torch.no_grad()
    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        for batch in data.batches():
            self.collect(self.transform(at_least_single(self.network.backbone(batch.x))), batch.y)
        self.refresh()

    def scores(self, x: Tensor) -> Scores:
        return self._scores(self.network.backbone(x))

    def reader(self, dtype: torch.dtype | None = None, *, without_chain: bool = False) -> Reader:
        backbone = folded(self.network.backbone, self.setup.image_shape, dtype)
        return lambda x: self._scores(backbone(x))

    def _scores(self, f: Tensor) -> Scores:
        if not self.network.num_tasks:  # fixed heads are evaluated before the first task, where no statistics exist
            untrained = at_least_single(self.network.logits(f))
            return Scores(til=untrained, cil=untrained)
        logits = self.rank(self.transform(at_least_single(f)))
        return Scores(til=logits, cil=logits[:, self.network.seen()])

    def parameter_counts(self) -> Parameters:
        """Backbone and statistics."""
        held = sum(buffer.numel() for buffer in self.buffers() if buffer.is_floating_point())
        count = num_parameters(self.network.backbone) + held
        return Parameters(count, count)


class LinearLearner(StatisticsLearner[Config], ABC):
    """Ranks classes by W z + b, both computed again when a task has ended."""

    class_weights: Tensor
    class_biases: Tensor

    def __init__(self, network: Network, config: Config, setup: Setup, dim: int = 0) -> None:
        super().__init__(network, config, setup)
        self.register_buffer("class_weights", torch.zeros(0, dim or network.feature_dim))
        self.register_buffer("class_biases", torch.zeros(0))

    def grow(self, num_classes: int) -> None:
        self.class_weights = F.pad(self.class_weights, (0, 0, 0, num_classes))
        self.class_biases = F.pad(self.class_biases, (0, num_classes))

    def rank(self, z: Tensor) -> Tensor:
        return F.linear(z, self.class_weights, self.class_biases)

    def parameter_counts(self) -> Parameters:
        """Reading needs the backbone, W and b alone."""
        inference = num_parameters(self.network.backbone) + self.class_weights.numel() + self.class_biases.numel()
        return Parameters(super().parameter_counts().training, inference)


class SharedGaussians(StatisticsLearner[Shrunk], ABC):
    """The discriminant of class means and one shared covariance, or with components of each class."""

    def __init__(self, network: Network, config: Shrunk, setup: Setup, num_components: int = 0) -> None:
        super().__init__(network, config, setup)
        self.discriminant = Discriminant(
            network.feature_dim, "held-out" if config.shrinkage == -1 else config.shrinkage, num_components
        )
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._was_trained = False

    def grow(self, num_classes: int) -> None:
        self.discriminant.grow(num_classes)

    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        self._was_trained = self.is_trained_on(task)
        super().end_task(task, data)

    def collect(self, z: Tensor, labels: Tensor) -> None:
        self._batches.append((z, labels))

    def refresh(self) -> None:
        z, labels = (torch.cat(parts) for parts in zip(*self._batches, strict=True))
        self._batches.clear()
        if not self._was_trained:
            self.discriminant.choose(z, labels)
        self.discriminant.add(z, labels)
        self.discriminant.refresh()

    def rank(self, z: Tensor) -> Tensor:
        scores: Tensor = self.discriminant(z)
        return scores

    def parameter_counts(self) -> Parameters:
        """Reading needs the backbone and what the discriminant computes scores from."""
        read = sum(buffer.numel() for buffer in self.discriminant.read_buffers())
        return Parameters(super().parameter_counts().training, num_parameters(self.network.backbone) + read)
