"""The training settings of a run; a phase may have its own epochs and learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.errors import UserError


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

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_rate <= 0 or not 0 < self.factor <= 1:
            raise UserError(
                f"learning_rate must be positive and factor in (0, 1], got {self.learning_rate}, {self.factor}"
            )
