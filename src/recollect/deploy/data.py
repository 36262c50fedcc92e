"""Images and labels of any kind (a folder, arrays, a Dataset, a DataLoader) as uint8 images of one size."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from recollect.deploy.names import check_class_name
from recollect.device import to_host
from recollect.errors import UserError
from recollect.streams.images import class_pictures, decode_image, read_size, upright

NUM_SAMPLED = 30  # image files whose size is looked at
CHUNK = 256  # images that threads decode at a time
MAX_LISTED, MAX_NAMED = 20, 5  # unreadable and other files in one message
Progress = Callable[[Iterable[Path], int], Iterable[Path]]
"""Wraps an iteration over files, given how many there are, to show its progress."""


def no_progress(paths: Iterable[Path], _num: int) -> Iterable[Path]:
    return paths


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


def read_labelled(data: Any, size: int, progress: Progress = no_progress, *, strict: bool = False) -> Labelled:
    """Read a folder with one subfolder per class, a pair of arrays, a Dataset or a DataLoader.

    Files of a folder that are not images, or are damaged, are skipped with a warning; with `strict` they are errors.
    """
    if isinstance(data, str | Path):
        return _read_folder(Path(data), size, progress, strict)
    if isinstance(data, tuple | list) and len(data) == 2 and not _is_pair(data[0]):
        images, labels = data
        return _join([_resize(image, size) for image in images], [check_class_name(label) for label in labels])
    resized, names = [], []
    for image, label in _iterate_pairs(data):  # one at a time: photos are far larger than the resized images
        resized.append(_resize(image, size))
        names.append(check_class_name(label))
    return _join(resized, names)


def typical_size(data: Any) -> int:
    """The median length of the shorter side of some of the images, in pixels; 0 where they do not tell it."""
    if isinstance(data, Labelled):
        return int(data.images.shape[-1])
    if isinstance(data, str | Path):
        files = [path for paths in class_pictures(Path(data), []).values() for path in paths]
        sides = [min(size) for size in map(read_size, files[:: max(1, len(files) // NUM_SAMPLED)]) if size]
        return int(np.median(sides)) if sides else 0
    first = data[0][0] if hasattr(data, "__getitem__") and len(data) else None
    if isinstance(first, Image.Image):
        return min(first.size)
    shape = tuple(getattr(first, "shape", ()))
    return sorted(shape)[-2] if len(shape) >= 2 else 0


def read_images(data: Any, size: int) -> Tensor:
    """Unlabelled images as uint8 [n, 3, size, size], from an array, a tensor, paths, Pillow images or a DataLoader."""
    if isinstance(data, Tensor) and data.dtype == torch.uint8 and data.shape[1:] == (3, size, size):
        return to_host(data)
    if isinstance(data, torch.utils.data.DataLoader):
        batches = [batch[0] if isinstance(batch, tuple | list) else batch for batch in data]
        data = [image for batch in batches for image in batch]
    if isinstance(data, str | Path | Image.Image):
        data = [data]
    shape = tuple(getattr(data, "shape", ()))
    is_one = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    if isinstance(data, Tensor) and len(shape) == 3:  # [3, h, w] is one image in torch, three grey ones in NumPy
        is_one |= shape[0] in (1, 3)
    if is_one or not isinstance(data, Iterable):
        what = f"what looks like one image, of shape {list(shape)}" if is_one else type(data).__name__
        raise UserError(
            f"give a list of images, or an array [n, height, width, 3] or [n, 3, h, w] or [n, h, w, 1]; got {what}"
        )
    images = [read_file(Path(image), size) if isinstance(image, str | Path) else _resize(image, size) for image in data]
    return torch.stack(images) if images else torch.zeros(0, 3, size, size, dtype=torch.uint8)


def read_file(path: Path, size: int) -> Tensor:
    """One image file as uint8 [3, size, size]: the centre square, resized."""
    try:
        content = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path") from error
    return torch.from_numpy(decode_image(content, str(path), size))


def _read_folder(folder: Path, size: int, progress: Progress, strict: bool) -> Labelled:
    strays: list[Path] = []
    classes = class_pictures(folder, None if strict else strays)
    files = [(path, check_class_name(name)) for name, paths in classes.items() for path in paths]
    images = torch.empty(len(files), 3, size, size, dtype=torch.uint8)  # one allocation: there may be many
    errors: dict[int, str] = {}

    def read(row: int) -> Path:
        path = files[row][0]
        try:
            images[row] = read_file(path, size)
        except UserError as error:
            errors[row] = str(error)
        return path

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without holding the interpreter's lock
        chunks = (range(start, min(start + CHUNK, len(files))) for start in range(0, len(files), CHUNK))
        for _ in progress((path for chunk in chunks for path in pool.map(read, chunk)), len(files)):
            pass
    if strays:
        warnings.warn(
            f"skipped {_count(len(strays), 'file')} that are not images of a class: {_names(strays)}", stacklevel=4
        )
    intact = [row for row in range(len(files)) if row not in errors]
    unreadable = _listing([errors[row] for row in sorted(errors)])
    if errors and (strict or not intact):
        raise UserError(unreadable)
    if errors:
        warnings.warn(f"skipped {_count(len(errors), 'image')}: {unreadable}", stacklevel=4)
    lost = sorted({name for _, name in files} - {files[row][1] for row in intact})
    if lost:
        raise UserError(f"no image of the class {lost[0]!r} can be read; replace them, or remove the class")
    labelled = _label(images[intact] if errors else images, [files[row][1] for row in intact])
    return replace(labelled, paths=tuple(files[row][0] for row in intact))


def _listing(messages: Sequence[str]) -> str:
    more = [f"and {len(messages) - MAX_LISTED} more"] * (len(messages) > MAX_LISTED)
    return "\n".join([*messages[:MAX_LISTED], *more])


def _names(paths: Sequence[Path]) -> str:
    more = [f"and {len(paths) - MAX_NAMED} more"] * (len(paths) > MAX_NAMED)
    return ", ".join([*(path.name for path in paths[:MAX_NAMED]), *more])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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
    else:
        kind = type(data).__name__
        raise UserError(f"cannot learn from a {kind}; give a folder, a pair of arrays, a Dataset or a DataLoader")


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


def _is_pair(item: Any) -> bool:
    """Whether an item is an image and its label rather than a list of images."""
    is_two = isinstance(item, tuple | list) and len(item) == 2
    return is_two and (isinstance(item[1], str | int | float) or getattr(item[1], "ndim", 1) == 0)


def _resize(image: Any, size: int) -> Tensor:
    """One image of any kind as uint8 [3, size, size]: the centre square, resized."""
    if isinstance(image, Image.Image):
        try:
            picture = upright(image)
        except (OSError, ValueError) as error:  # corrupt, or with pixels of an unsupported type
            raise UserError(f"an image cannot be read ({error}); replace or remove it") from error
    else:
        picture = _to_pillow(image).convert("RGB")
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1)))


def _to_pillow(image: Any) -> Image.Image:
    if isinstance(image, Tensor):
        image = to_host(image.float() if image.is_floating_point() else image)
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or not array.size or (array.shape[0] not in (1, 3) and array.shape[2] not in (1, 3)):
        raise UserError(f"an image has the shape [height, width], [h, w, 3] or [3, h, w]; got {list(array.shape)}")
    if array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.dtype != np.uint8:
        is_float = np.issubdtype(array.dtype, np.floating)
        if not is_float or not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise UserError(
                f"pixels are uint8, or floats from 0 to 1; got {array.dtype} from {array.min()} to {array.max()}"
            )
        array = np.rint(array * 255).astype(np.uint8)
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def _join(images: Sequence[Tensor], names: Sequence[str]) -> Labelled:
    if not images or len(images) != len(names):
        raise UserError(f"got {len(images)} images and {len(names)} labels; give one label per image, and at least one")
    return _label(torch.stack(list(images)), names)


def _label(images: Tensor, names: Sequence[str]) -> Labelled:
    class_names = tuple(sorted(set(names)))
    indices = {name: label for label, name in enumerate(class_names)}
    return Labelled(images, torch.tensor([indices[name] for name in names]), class_names)
