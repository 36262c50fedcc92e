"""How every phase trains; a phase brings its own epochs and learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of a run's training."""

    epochs: int = 40
    """Epochs of each task."""
    learning_rate: float = 5e-4
    """Adam's learning rate at the start of each task."""
    batch_size: int = 32
    """Images a step."""
    patience: int = 3
    """Epochs without a better validation loss before the learning rate falls."""
    factor: float = 0.1
    """What the learning rate is then multiplied by."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_rate <= 0 or not 0 < self.factor <= 1:
            raise UserError(
                f"learning_rate must be positive and factor in (0, 1], got {self.learning_rate}, {self.factor}"
            )
