"""What the engine tells others while it works; the default listens to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

MIN_TRACKED = 1_000  # images; fewer are read before a bar would be seen


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


def track_reading(observer: Observer, title: str, chunks: Iterable[Tensor], num_images: int) -> Iterator[Tensor]:
    """Pass chunks of images through, and tell of the progress if they are many."""
    if num_images < MIN_TRACKED:
        yield from chunks
        return
    observer.phase(title, num_images)
    for chunk in chunks:
        yield chunk
        observer.advance(len(chunk))
        observer.report()
