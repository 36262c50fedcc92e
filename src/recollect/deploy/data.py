"""Images and labels of any kind (a folder, arrays, paths, a Dataset, a generator) as uint8 images of one size."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from recollect.deploy.image_files import Progress, no_progress, read_all, read_images_of_classes
from recollect.deploy.pictures import read_image
from recollect.device import to_host
from recollect.errors import UserError
from recollect.names import check_class_name
from recollect.pictures import class_pictures, find_images, read_size

NUM_SAMPLED = 30  # image files whose size is looked at


@dataclass(frozen=True)
class Labelled:
    """Images [n, 3, size, size] and labels [n], which index the sorted `class_names`."""

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    paths: tuple[Path, ...] = ()
    """The file of each image; empty if they were not read from files."""

    @property
    def digest(self) -> str:
        """A hash of images and labels."""
        digest = hashlib.blake2b("\n".join(self.class_names).encode(), digest_size=16)
        for tensor in (self.labels, self.images):
            digest.update(np.asarray(tensor.contiguous()).data)
        return digest.hexdigest()

    def count(self) -> dict[str, int]:
        """Number of images per class."""
        counts = Counter(self.labels.tolist())
        return {name: counts[label] for label, name in enumerate(self.class_names)}

    def keep(self, classes: Collection[str]) -> Labelled:
        """The images of these classes."""
        kept = [name for name in self.class_names if name in classes]
        rows = [row for row, label in enumerate(self.labels.tolist()) if self.class_names[label] in classes]
        labels = torch.tensor([kept.index(self.class_names[int(self.labels[row])]) for row in rows], dtype=torch.int64)
        return Labelled(self.images[rows], labels, tuple(kept), tuple(self.paths[row] for row in rows if self.paths))


def read_labelled(data: Any, size: int, progress: Progress = no_progress, *, strict: bool = False) -> Labelled:
    """Read a folder with one subfolder per class, images with their labels, or something that yields pairs of both.

    The latter is a Dataset, a DataLoader or a generator. Files of a folder that are not images, or are damaged, are
    skipped with a warning; with `strict` they are errors. What was read before is returned as it is.
    """
    if isinstance(data, Labelled):
        return data
    if isinstance(data, str | Path):
        images, names, paths = read_images_of_classes(Path(data), size, progress, strict=strict)
        return replace(_label(images, names), paths=paths)
    if _is_columns(data):
        images, labels = data
        if isinstance(images, str | Path):
            raise UserError(f"the subfolders of {images} name the classes; leave labels out, or give a list of paths")
        resized = read_all(_iterate_images(images), size)
        return _join(resized, [check_class_name(label) for label in labels])
    resized, names = [], []
    for image, label in _iterate_pairs(data):  # one at a time: photos are far larger than the resized images
        resized.append(read_image(image, size))
        names.append(check_class_name(label))
    return _join(resized, names)


def typical_size(data: Any) -> int:
    """The median length of the shorter side of some of the images, in pixels; 0 where they do not tell it."""
    if isinstance(data, Labelled):
        return int(data.images.shape[-1])
    if isinstance(data, str | Path):
        return _median_side([path for paths in class_pictures(Path(data), []).values() for path in paths])
    images = data[0] if _is_columns(data) else data
    if not hasattr(images, "__getitem__") or not hasattr(images, "__len__") or not len(images):
        return 0  # a generator is read only once
    first = next(iter(images)) if _is_columns(data) else images[0][0]
    if isinstance(first, str | Path):
        return _median_side(list(images) if _is_columns(data) else [first])
    if isinstance(first, Image.Image):
        return min(first.size)
    shape = tuple(getattr(first, "shape", ()))
    return sorted(shape)[-2] if len(shape) >= 2 else 0


def _median_side(paths: Sequence[str | Path]) -> int:
    sampled = paths[:: max(1, len(paths) // NUM_SAMPLED)]
    sides = [min(size) for size in (read_size(Path(path)) for path in sampled) if size]
    return int(np.median(sides)) if sides else 0


def read_images(data: Any, size: int) -> Tensor:
    """Unlabelled images as uint8 [n, 3, size, size].

    They come from an array, a tensor, a folder, paths, Pillow images, a DataLoader or a generator.
    """
    shape = tuple(getattr(data, "shape", ()))
    if shape[1:] == (3, size, size):
        if isinstance(data, np.ndarray) and data.dtype == np.uint8:
            return torch.from_numpy(np.array(data))
        if isinstance(data, Tensor) and data.dtype == torch.uint8:
            return to_host(data)
    is_one = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    if isinstance(data, Tensor) and len(shape) == 3:  # [3, h, w] is one image in torch, three grey ones in NumPy
        is_one |= shape[0] in (1, 3)
    if is_one or not isinstance(data, Iterable | Path | Image.Image):
        what = f"what looks like one image, of shape {list(shape)}" if is_one else type(data).__name__
        raise UserError(
            f"give a list of images, or an array [n, height, width, 3] or [n, 3, h, w] or [n, h, w, 1]; got {what}"
        )
    images = read_all(_iterate_images(data), size)
    return torch.stack(images) if images else torch.zeros(0, 3, size, size, dtype=torch.uint8)


def _iterate_images(data: Any) -> Iterator[Any]:
    """Each image or its path; a folder stands for all images in it, in the order of their paths."""
    if isinstance(data, torch.utils.data.DataLoader):
        for batch in data:
            yield from batch[0] if isinstance(batch, tuple | list) else batch
    elif isinstance(data, str | Path) and Path(data).is_dir():
        files = find_images(Path(data))
        if not files:
            raise UserError(f"there are no images in {data}")
        yield from files
    elif isinstance(data, str | Path | Image.Image):
        yield data
    else:
        yield from data


def _iterate_pairs(data: Any) -> Iterator[tuple[Any, Any]]:
    """Images and labels of a DataLoader or a Dataset; integer labels become the names in its `classes`."""
    if isinstance(data, torch.utils.data.DataLoader):
        to_name = _label_namer(data.dataset)
        for batch in data:
            for image, label in zip(*_split_pair(batch), strict=True):
                yield image, to_name(label)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        to_name = _label_namer(data)
        for index in range(len(data)):
            image, label = _split_pair(data[index])
            yield image, to_name(label)
    elif isinstance(data, Iterable):
        to_name = _label_namer(data)
        for item in data:
            image, label = _split_pair(item)
            yield image, to_name(label)
    else:
        raise UserError(
            f"cannot learn from a {type(data).__name__}; give a folder, a pair of arrays, a Dataset, a DataLoader or a "
            "generator of pairs"
        )


def _label_namer(dataset: Any) -> Callable[[Any], Any]:
    """A function from a label to its class name: an integer indexes the dataset's `classes`, if it has them."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):  # a Subset
        dataset = dataset.dataset
    classes = list(getattr(dataset, "classes", ()))

    def to_name(label: Any) -> Any:
        index = label.tolist() if hasattr(label, "tolist") else label
        if not classes or not isinstance(index, int):
            return label
        if not 0 <= index < len(classes):
            raise UserError(f"the label {index} is out of range: the dataset has {len(classes)} classes")
        return classes[index]

    return to_name


def _split_pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        what = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
        raise UserError(f"each item is a pair of an image and its label, got {what}")
    return item[0], item[1]


def _is_columns(data: Any) -> bool:
    """Whether data is all images and all labels, rather than a sequence of pairs."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    first = data[0]
    if isinstance(data, tuple) and isinstance(first, list) and first and isinstance(first[0], str):
        return True  # two paths look like a path and its label
    return not _is_pair(first)


def _is_pair(item: Any) -> bool:
    """Whether an item is an image and its label rather than a list of images."""
    is_two = isinstance(item, tuple | list) and len(item) == 2
    return is_two and (isinstance(item[1], str | int | float) or getattr(item[1], "ndim", 1) == 0)


def _join(images: Sequence[Tensor], names: Sequence[str]) -> Labelled:
    if not images or len(images) != len(names):
        raise UserError(f"got {len(images)} images and {len(names)} labels; give one label per image, and at least one")
    return _label(torch.stack(list(images)), names)


def _label(images: Tensor, names: Sequence[str]) -> Labelled:
    class_names = tuple(sorted(set(names)))
    indices = {name: label for label, name in enumerate(class_names)}
    return Labelled(images, torch.tensor([indices[name] for name in names]), class_names)
