"""A stream is a list of tasks; a task is three splits of images with labels that count the classifier's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.device import to_device
from recollect.streams.pixels import Pixels


def split_rows(rows: Tensor, size: int) -> tuple[Tensor, ...]:
    """Parts of at most `size` rows; no rows give no part, where `Tensor.split` gives an empty one.

    Not every device can run a network on an empty batch: BatchNorm then allocates double precision, which MPS lacks.
    """
    return rows.split(size) if len(rows) else ()


@dataclass(frozen=True)
class Split:
    """Rows `indices` of a uint8 array [n, c, h, w] that may be memory-mapped and is shared between splits."""

    images: Tensor
    indices: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels at positions of this split."""
        rows = to_device(self.indices[positions], self.images.device)  # a memory's samples are on a device already
        return self.images[rows], self.labels[to_device(positions, self.labels.device)]

    @staticmethod
    def concatenate(splits: Sequence[Split]) -> Split:
        """Splits of one array as one."""
        images = splits[0].images
        assert all(split.images is images for split in splits)
        return Split(images, torch.cat([s.indices for s in splits]), torch.cat([s.labels for s in splits]))


@dataclass(frozen=True)
class TaskInfo:
    """What a method may know of a task before it sees data."""

    index: int
    """Counted from 0."""
    name: str
    class_names: tuple[str, ...]
    units: tuple[int, ...] | None = None
    """The unit of each class, where some classes have been in earlier tasks; None where each has a new one."""

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True)
class Task:
    """One task of a stream."""

    info: TaskInfo
    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True)
class Stream:
    """Tasks in the order they arrive, and how their pixels are shown."""

    name: str
    tasks: tuple[Task, ...]
    pixels: Pixels
    image_shape: tuple[int, int, int]
    digest: str = ""
    """Of the data's content."""

    @property
    def repeats_classes(self) -> bool:
        """Whether a class is in more than one task."""
        names = [name for task in self.tasks for name in task.info.class_names]
        return len(set(names)) < len(names)

    def new_units(self) -> list[int]:
        """How many units each task adds to the classifier."""
        sizes, seen = [], set[int]()
        for info in (task.info for task in self.tasks):
            sizes.append(info.num_classes if info.units is None else len({*info.units} - seen))
            seen |= {*(info.units or ())}
        return sizes

    def with_one_unit_per_class(self) -> Stream:
        """The stream for a classifier that has one unit for a class, whichever tasks the class is in."""
        if not self.repeats_classes or any(task.info.units is not None for task in self.tasks):
            return self
        unit_of_name: dict[str, int] = {}
        tasks, first = [], 0
        for task in self.tasks:
            units = tuple(unit_of_name.setdefault(name, len(unit_of_name)) for name in task.info.class_names)
            splits = [
                replace(split, labels=torch.tensor(units)[split.labels - first])
                for split in (task.train, task.validation, task.test)
            ]
            tasks.append(Task(replace(task.info, units=units), *splits))
            first += task.info.num_classes
        return replace(self, tasks=tuple(tasks))

    def describe(self) -> dict[str, Any]:
        """What was learned from, in plain values: classes of each task, constants, and the data's digest."""
        return {
            "digest": self.digest,
            "image_shape": list(self.image_shape),
            "mean": list(self.pixels.mean),
            "std": list(self.pixels.std),
            "tasks": [{"name": task.info.name, "classes": list(task.info.class_names)} for task in self.tasks],
        }
