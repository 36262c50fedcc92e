"""Joint training, the upper bound: all tasks at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from recollect.errors import UserError
from recollect.methods._discriminant import read_features, start_heads
from recollect.methods.learner import BaselineConfig, Learner, Method, Phase, Setup, Update
from recollect.nets import Network
from recollect.streams import OMITTED, Batch, TaskData, TaskInfo


@dataclass(frozen=True, kw_only=True)
class JointConfig(BaselineConfig):
    gentle: Literal["never", "always", "pretrained"] = field(default="never", metadata=OMITTED)
    """Whether to initialise heads as one linear discriminant and freeze BatchNorm statistics, as `rfe-plus` does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gentle not in ("never", "always", "pretrained"):
            raise UserError(f"gentle is 'never', 'always' or 'pretrained', got {self.gentle!r}")


class Joint(Learner[JointConfig]):
    """L = L_CE(D_1 ∪ … ∪ D_N)."""

    together = True

    def __init__(self, network: Network, config: JointConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.is_gentle = config.gentle == "always" or (config.gentle == "pretrained" and network.is_pretrained)
        self._read: list[tuple[Tensor, Tensor]] = []

    def prepare_task(self, task: TaskInfo, data: TaskData) -> None:
        """Start all heads together, once the images of all tasks have been read."""
        if not self.is_gentle:
            return
        self._read.append((read_features(self.network.backbone, self.setup, data), data.labels))
        if len(self._read) == self.network.num_tasks:
            f, labels = (torch.cat(parts) for parts in zip(*self._read, strict=True))
            self._read.clear()
            start_heads([*self.network.heads], f, labels)

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, self.config.units, trains_norms=not self.is_gentle)

    def step(self, batch: Batch, update: Update) -> None:
        update(self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


METHODS = {
    "joint": Method(
        Joint,
        JointConfig(),
        "trains on all tasks at once, the upper bound",
        colour="#808080",
        order=0,
        marker="D",
    )
}
