"""What a method is given: a batch of the stream per step, samples of a memory, and a task's images when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recollect.device import reading_batch_size
from recollect.distributed.shard import UNSHARDED, Shard
from recollect.rng import Key
from recollect.streams.pixels import Moves, Pixels
from recollect.streams.split import Split, split_rows

Sampler = Callable[[int], Tensor]
Track = Callable[[Iterable[Tensor], int], Iterable[Tensor]]
"""Wraps an iteration over chunks of images, given how many images there are."""


@dataclass(frozen=True)
class Samples:
    """A draw from a memory; `values` holds what else was stored with each image."""

    images: Tensor
    labels: Tensor
    tasks: Tensor
    values: Mapping[str, Tensor]
    slots: Tensor
    """Where the samples lie in the memory."""
    shard: Shard = UNSHARDED

    def draw(self, sample: Sampler) -> Tensor:
        """A random value per sample, from `sample(n)`, which draws n of them."""
        return self.shard.draw(len(self.labels), sample)


@dataclass(frozen=True)
class Batch:
    """Stored images and the view of them that networks see, on the device, with the key of everything random here."""

    images: Tensor
    """As stored, uint8."""
    x: Tensor
    y: Tensor
    pixels: Pixels
    key: Key
    cached: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs of the phase's `CachedFunctions` for x."""
    shard: Shard = UNSHARDED
    recall: Callable[[Samples, Tensor], tuple[Tensor, Mapping[str, Tensor]]] | None = None
    """For phases whose `CachedFunctions` name a memory: views of its samples, augmented where the mask is true, and the
    functions' outputs for them."""
    progress: float = 1.0
    """Where the step is in its epoch: 0 for the first, 1 for the last."""

    def rng(self, purpose: str) -> torch.Generator:
        """A generator for one purpose of this step."""
        return (self.key / purpose).generator()

    def draw(self, sample: Sampler) -> Tensor:
        """A random value per image, from `sample(n)`, which draws n of them."""
        return self.shard.draw(len(self.y), sample)

    def augment(self, samples: Samples, purpose: str) -> Tensor:
        """Samples of a memory as networks see the stream's own images: each with a fresh crop and flip."""
        return augment(samples.images, self.pixels, self.rng(purpose), samples.shard)

    def normalise(self, images: Tensor) -> Tensor:
        """Stored images as networks see them, without augmentation."""
        return self.pixels.normalise(images)


def augment(images: Tensor, pixels: Pixels, rng: torch.Generator, shard: Shard = UNSHARDED) -> Tensor:
    """Normalised after a random crop and flip per image, drawn for the images of all ranks."""
    moves = pixels.draw(shard.global_size(len(images)), rng)
    return pixels.normalise(pixels.crop_and_flip(images, Moves(*(shard.split(rows)[0] for rows in moves))))


@dataclass(frozen=True)
class TaskData:
    """Images of one task, unaugmented, for writing memories and taking statistics."""

    split: Split
    pixels: Pixels
    device: torch.device
    batch_size: int
    key: Key
    track: Track | None = None
    """Shows the progress of each pass over the images."""

    def __len__(self) -> int:
        return len(self.split)

    @staticmethod
    def of(split: Split, pixels: Pixels, device: torch.device, key: Key, track: Track | None = None) -> TaskData:
        """In batches of a size that the device reads fast."""
        return TaskData(split, pixels, device, reading_batch_size(split.images, device), key, track)

    @property
    def labels(self) -> Tensor:
        """On the device, in the order of the images."""
        return self.split.labels.to(self.device)

    def batches(self, positions: Tensor | None = None, view: int = 0) -> Iterator[Batch]:
        """Batches of all images, or of those at `positions`: unaugmented as view 0, and augmented as further ones.

        Views are the same in batches of any size.
        """
        positions = torch.arange(len(self)) if positions is None else positions
        moves = self.pixels.draw(len(self), (self.key / "view" / view).generator()) if view else None
        chunks: Iterable[Tensor] = split_rows(positions, self.batch_size)
        for step, chunk in enumerate(self.track(chunks, len(positions)) if self.track else chunks):
            images, labels = self.split.take(chunk)
            images, labels = images.to(self.device), labels.to(self.device)
            shown = images
            if moves is not None:
                shown = self.pixels.crop_and_flip(images, Moves(*(rows[chunk] for rows in moves)).to(self.device))
            yield Batch(images, self.pixels.normalise(shown), labels, self.pixels, self.key / step)
