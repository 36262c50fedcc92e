"""What the engine tells others while it works; the default listens to nothing."""

from __future__ import annotations

from typing import Any


class Observer:
    """Told of events worth keeping, of phases and of their progress."""

    def event(self, kind: str, **fields: Any) -> None:
        """Something worth a line in events.jsonl."""

    def phase(self, title: str, num_images: int) -> None:
        """A phase of `num_images` presentations begins."""

    def advance(self, num_images: int) -> None:
        """So many images more."""

    def report(self, loss: float | None = None, accuracy: float | None = None) -> None:
        """Fresh figures: mean training loss of this epoch, validation accuracy of the last one."""
