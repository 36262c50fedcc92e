"""The training settings of a run; a phase may have its own epochs and learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from recollect.errors import UserError
from recollect.streams import OMITTED

WARM_UP = 0.1
"""The share of a phase in which the rate of a cosine schedule rises."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of a run's training."""

    epochs: int = 40
    """Number of epochs per task."""
    learning_rate: float = 5e-4
    """Adam's learning rate at the start of each task."""
    batch_size: int = 32
    """Images per step."""
    patience: int = 3
    """Epochs without a lower validation loss before the learning rate is reduced."""
    factor: float = 0.1
    """Factor by which the learning rate is then multiplied."""
    schedule: Literal["plateau", "cosine"] = field(default="plateau", metadata=OMITTED)
    """Learning rate: reduced by `patience` and `factor`, or raised and then lowered to zero along a cosine."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.schedule not in ("plateau", "cosine"):
            raise UserError(f"schedule is 'plateau' or 'cosine', got {self.schedule!r}")
        if self.learning_rate <= 0 or not 0 < self.factor <= 1:
            raise UserError(
                f"learning_rate must be positive and factor in (0, 1], got {self.learning_rate}, {self.factor}"
            )


def cosine(progress: float) -> float:
    """The share of the learning rate after so much of a phase: linear to 1, then half a cosine to 0.

    >>> [round(cosine(progress), 2) for progress in (0, 0.05, 0.1, 0.55, 1)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if progress < WARM_UP:
        return progress / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))
