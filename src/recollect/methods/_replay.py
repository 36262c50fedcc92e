"""What methods with a reservoir share: the memory, a draw shown beside the stream's batch, and what is offered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from recollect.device import to_device
from recollect.errors import UserError
from recollect.memory import Memory
from recollect.methods.learner import BaselineConfig, Learner, Phase, Setup, Update
from recollect.nets import Network
from recollect.streams import Batch, Samples, TaskInfo


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(BaselineConfig):
    memory: int = 500
    """Samples in the reservoir, |B|."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < 1:
            raise UserError(f"memory must be positive, got {self.memory}; a method without memory is finetune or rfe")


Config = TypeVar("Config", bound=ReplayConfig)


class ReplayLearner(Learner[Config], ABC):
    """A learner with a reservoir that is offered every presentation of every image."""

    def __init__(
        self, network: Network, config: Config, setup: Setup, fields: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(network, config, setup)
        self.memory = Memory(config.memory, setup.image_shape, fields)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, self.config.units)

    @abstractmethod
    def step(self, batch: Batch, update: Update) -> None:
        """One step of the method, which ends by offering the batch to the reservoir."""

    def replay(self, batch: Batch, draw: str = "replay") -> tuple[Samples, Tensor] | None:
        """As many samples as the batch has, and a fresh view of each; None while nothing is stored."""
        past = self.memory.sample(len(batch.y), batch.rng(draw))
        return None if past is None else (past, batch.augment(past, f"{draw}ed view"))

    def remember(self, batch: Batch, **values: Tensor) -> None:
        """Offer the images just presented, unaugmented, with what else is to be stored of each."""
        rows, slots = self.memory.admit(len(batch.y), batch.rng("reservoir"))
        rows = to_device(rows, batch.y.device)
        labels = batch.y[rows]
        kept = {name: value[rows] for name, value in values.items()}
        self.memory.write(
            slots, batch.images[rows], labels, torch.full_like(labels, self.network.num_tasks - 1), **kept
        )


def check_decay(**decays: float) -> None:
    """Refuse moving averages that never move, or away."""
    for name, decay in decays.items():
        if not 0 <= decay < 1:
            raise UserError(f"{name} is the decay of a moving average, from 0 to below 1, got {decay}")


def together(batch: Batch, view: Tensor) -> Tensor:
    """Stream and replayed images in one pass, so that BatchNorm sees both."""
    return torch.cat([batch.x, view])


def flip(batch: Batch, coin: str, probability: float) -> bool:
    """One flip of the named coin; every coin is a stream of its own."""
    return bool(torch.rand((), generator=batch.rng(coin)) < probability)
