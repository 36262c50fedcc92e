"""Copies of a network that ordinary training cannot touch.

`Frozen` is a teacher: its weights never change, and `train()` leaves it in evaluation mode. What its BatchNorm does
while a student trains is a stated policy. `Averaged` is an exponential moving average: a ← d a + (1 - d) θ with
d = min(1 - 1/(moves+1), decay), so that an average that moves seldom forgets its random start as fast as any.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Statistics = Literal["frozen", "batch", "adapting"]
STATISTICS: tuple[Statistics, ...] = ("frozen", "batch", "adapting")


class _AlwaysEval(nn.Module):
    """A module that stays in evaluation mode, also when `train()` is called on a parent."""

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


class Frozen(_AlwaysEval):
    """A copy of a module whose weights never change and that is always in evaluation mode.

    `teacher_forward` computes the targets of a training student. BatchNorm then normalises by the stored statistics
    (`frozen`), by the batch with the stored ones unchanged (`batch`), or by the batch with the stored ones updated
    from it (`adapting`).
    """

    def __init__(self, module: nn.Module, statistics: Statistics = "frozen") -> None:
        super().__init__()
        if statistics not in STATISTICS:
            raise ValueError(f"unknown teacher statistics {statistics!r}; choose from {', '.join(STATISTICS)}")
        self.statistics = statistics
        self.module = deepcopy(module).requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Tensor:
        return self.module(*inputs)  # type: ignore[no-any-return]

    @torch.no_grad()
    def teacher_forward(self, *inputs: Any) -> Tensor:
        """Targets for a training student, under the stated policy for BatchNorm."""
        if self.statistics == "frozen":
            return self.module(*inputs)  # type: ignore[no-any-return]
        norms = [m for m in self.module.modules() if isinstance(m, _BatchNorm)]
        for norm in norms:
            norm.training = True
            norm.track_running_stats = self.statistics == "adapting"
        try:
            return self.module(*inputs)  # type: ignore[no-any-return]
        finally:
            for norm in norms:
                norm.training, norm.track_running_stats = False, True


class Averaged(_AlwaysEval):
    """A moving average of a module's parameters, warmed up; its float buffers are averaged too, others copied."""

    moves: Tensor

    def __init__(self, module: nn.Module, decay: float = 0.999) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of a moving average lies in [0, 1), got {decay}")
        self.decay = decay
        self.module = deepcopy(module).requires_grad_(False).eval()
        self.register_buffer("moves", torch.zeros((), dtype=torch.int64))

    def grow(self, module: nn.Module) -> None:
        """Copy the parts of `module` that are new; what is averaged already stays."""
        averaged = self.module.state_dict()
        self.module = deepcopy(module).requires_grad_(False).eval()
        self.module.load_state_dict(self.module.state_dict() | averaged)

    @torch.no_grad()
    def update(self, module: nn.Module, *, move: bool = True) -> None:
        """Move towards `module`, whose shapes must be those averaged here, unless `move` is False."""
        if not move:
            return
        self.moves += 1
        decay = (1 - 1 / (self.moves.float() + 1)).clamp(max=self.decay)
        for mine, theirs in zip(_tensors(self.module), _tensors(module), strict=True):
            if mine.is_floating_point():
                mine.lerp_(theirs.to(mine.dtype), (1 - decay).to(mine.dtype))
            else:
                mine.copy_(theirs)

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Tensor:
        return self.module(*inputs)  # type: ignore[no-any-return]


@torch.no_grad()
def average_weights(module: nn.Module, other: nn.Module, share: float) -> None:
    """Make parameters and buffers share · module + (1 - share) · other; what is equal, or no number, stays.

    >>> module, other = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> _ = nn.init.constant_(module.weight, 3.0), nn.init.constant_(other.weight, 0.0)
    >>> average_weights(module, other, 1 / 3)
    >>> module.weight.item()
    1.0
    """
    for mine, theirs in zip(_tensors(module), _tensors(other), strict=True):
        if (mine.is_floating_point() or mine.is_complex()) and not torch.equal(mine, theirs):  # ∞ would become NaN
            mine.lerp_(theirs, 1 - share)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
