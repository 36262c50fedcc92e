"""What a stream file registers: how to load the data, how to cut it into tasks, and its default protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from recollect.errors import UserError

Shift = Literal["none", "rotated", "permuted", "coloured", "corrupted"]
OMITTED: Mapping[str, bool] = {"omitted_at_default": True}
"""Marks an option that configs leave out at its default, so that those written before it existed keep their hash."""


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How a dataset becomes a stream."""

    tasks: int | list[list[str]] = 5
    """Number of tasks, or the class names of each task."""
    class_order: Literal["label", "seeded"] = "label"
    """Assign classes to tasks in label order, or in a random order drawn from the seed."""
    train_per_class: int = 0
    """Number of training images per class, a random subset drawn from the seed; 0 for all."""
    validation: float = 0.1
    """Fraction of the training images of each class held out for validation."""
    crop_padding: int = 4
    """Padding of the random crop in pixels; 0 for no crop."""
    shift: Shift = field(default="none", metadata=OMITTED)
    """What changes from task to task where every task has all classes; none splits the classes among tasks."""
    repeats: int = field(default=0, metadata=OMITTED)
    """Earlier classes that each task brings back, drawn from the seed; a class's images are divided among its tasks."""
    blur: float = field(default=0.0, metadata=OMITTED)
    """Fraction of the training images of each class that arrive in tasks of other classes, from 0 to 0.9."""
    imbalance: float = field(default=1.0, metadata=OMITTED)
    """Size of the largest class over that of the smallest; sizes fall exponentially in an order drawn from the seed."""

    def __post_init__(self) -> None:
        if isinstance(self.tasks, int) and self.tasks < 1:
            raise UserError(f"a stream has at least 1 task, got tasks={self.tasks}")
        if self.class_order not in ("label", "seeded"):
            raise UserError(f"class_order is 'label' or 'seeded', got {self.class_order!r}")
        if self.train_per_class < 0:
            raise UserError(f"train_per_class counts images, got {self.train_per_class}; 0 takes all")
        if not 0 <= self.validation < 1:
            raise UserError(f"validation is a share in [0, 1), got {self.validation}")
        if self.crop_padding < 0:
            raise UserError(f"crop_padding counts pixels, got {self.crop_padding}; 0 is no crop")
        if isinstance(self.tasks, list) and not self.tasks:
            raise UserError("a stream has at least 1 task, got an empty list")
        self._check_scenario()

    def _check_scenario(self) -> None:
        if self.shift not in get_args(Shift):
            raise UserError(f"shift is one of {', '.join(get_args(Shift))}; got {self.shift!r}")
        if self.repeats < 0:
            raise UserError(f"repeats counts classes, got {self.repeats}; 0 brings none back")
        if not 0 <= self.blur <= 0.9:
            raise UserError(f"blur is a fraction from 0 to 0.9, got {self.blur}; 0 keeps tasks apart")
        if self.imbalance < 1:
            raise UserError(
                f"imbalance is the largest class over the smallest, got {self.imbalance}; 1 changes nothing"
            )
        if self.shift != "none" and (self.repeats or self.blur or not isinstance(self.tasks, int)):
            raise UserError(
                f"with shift={self.shift} every task has all classes: give tasks as a number, no repeats and no blur"
            )
        if self.blur and self.repeats:
            raise UserError("blur and repeats both bring classes back; choose one of them")


@dataclass(frozen=True)
class Dataset:
    """Labelled uint8 images, before they are cut into tasks."""

    class_names: tuple[str, ...]
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...] | None = None
    """None where the constants are computed on the first task's training images."""
    std: tuple[float, ...] | None = None
    flip: bool = True
    digest: str = ""
    """What tells this data from other data; of the content, not of where it lies."""


def content_digest(class_names: Sequence[str], *arrays: Any) -> str:
    """A short hash of class names and arrays."""
    digest = hashlib.blake2b("\n".join(class_names).encode(), digest_size=8)
    for array in map(np.ascontiguousarray, arrays):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings under which a stream is learned unless others are given."""

    backbone: str = "resnet18"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    """Defaults for whichever of these options a method has."""


@dataclass(frozen=True)
class Size:
    """How large a dataset is, known without loading it."""

    num_classes: int
    train_per_class: int
    image_shape: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A registered stream."""

    load: Callable[[StreamOptions, Path | None], Dataset]
    """From options and the folder given by --data-root, if any."""
    options: StreamOptions = StreamOptions()
    protocol: Protocol = Protocol()
    about: str = ""
    size: Size | None = None
    """For estimates; None where only the data tells."""
