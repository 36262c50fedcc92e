"""What people have (a folder, arrays, a Dataset, a DataLoader) as uint8 images of one size with class names."""

from __future__ import annotations

import hashlib
import io
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from recollect.engine.runtime import to_host
from recollect.errors import UserError
from recollect.streams.images import class_pictures, decode_image, upright

UNKNOWN = "unknown"  # answered of images whose class is not sure enough
MOST_NAMED = 20  # unreadable files in one message
Progress = Callable[[Iterable[Path], int], Iterable[Path]]


@dataclass(frozen=True)
class Labelled:
    """Images [n, 3, size, size] and the class of each, as a number into `class_names`, which are sorted."""

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of images and classes, whatever their order on disk."""
        found = hashlib.blake2b("\n".join(self.class_names).encode(), digest_size=16)
        for tensor in (self.labels, self.images):
            found.update(np.asarray(tensor.contiguous()).data)
        return found.hexdigest()

    def count(self) -> dict[str, int]:
        """Images of each class."""
        numbers = Counter(self.labels.tolist())
        return {name: numbers[label] for label, name in enumerate(self.class_names)}


def read_labelled(data: Any, size: int, progress: Progress = lambda paths, num: paths) -> Labelled:
    """From a folder with a sub-folder a class, a pair of arrays, a Dataset or a DataLoader."""
    if isinstance(data, str | Path):
        return _from_folder(Path(data), size, progress)
    if isinstance(data, tuple | list) and len(data) == 2 and not _is_pair(data[0]):
        images, labels = data
        return _joined([_sized(image, size) for image in images], [class_name(label) for label in labels])
    sized, names = [], []
    for image, label in _pairs(data):  # one at a time: photos are far larger than what is made of them
        sized.append(_sized(image, size))
        names.append(class_name(label))
    return _joined(sized, names)


def read_images(data: Any, size: int) -> Tensor:
    """Images alone, [n, 3, size, size] of bytes: of an array or tensor, paths, or a DataLoader, its labels left out."""
    if isinstance(data, torch.utils.data.DataLoader):
        batches = [batch[0] if isinstance(batch, tuple | list) else batch for batch in data]
        data = [image for batch in batches for image in batch]
    if isinstance(data, str | Path | Image.Image):
        data = [data]
    shape = tuple(getattr(data, "shape", ()))
    is_one = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    if isinstance(data, Tensor) and len(shape) == 3:  # [3, h, w] is one image to torch, three grey ones to numpy
        is_one |= shape[0] in (1, 3)
    if is_one or not isinstance(data, Iterable):
        what = f"what looks like one image, of shape {list(shape)}" if is_one else type(data).__name__
        raise UserError(
            f"give a list of images, or an array [n, height, width, 3] or [n, 3, h, w] or [n, h, w, 1]; got {what}"
        )
    found = []
    for each in data:
        if isinstance(each, str | Path):
            found.append(torch.from_numpy(decode_image(_open(Path(each)), str(each), size)))
        else:
            found.append(_sized(each, size))
    return torch.stack(found) if found else torch.zeros(0, 3, size, size, dtype=torch.uint8)


def _from_folder(folder: Path, size: int, progress: Progress) -> Labelled:
    folders = class_pictures(folder)
    listed = [(path, name) for name, paths in folders.items() for path in paths]
    names = [class_name(name) for _, name in listed]
    paths = progress((path for path, _ in listed), len(listed))
    images, wrong = [], []
    for path in paths:
        try:
            images.append(torch.from_numpy(decode_image(_open(path), str(path), size)))
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        more = [f"and {len(wrong) - MOST_NAMED} more"] * (len(wrong) > MOST_NAMED)
        raise UserError("\n".join([*wrong[:MOST_NAMED], *more]))
    return _joined(images, names)


def _open(path: Path) -> io.BytesIO:
    try:
        return io.BytesIO(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path") from error


def _pairs(data: Any) -> Iterator[tuple[Any, Any]]:
    """Images and labels one by one, of a DataLoader's batches or of a Dataset's items; its classes name the labels."""
    if isinstance(data, torch.utils.data.DataLoader):
        named = _namer(data.dataset)
        for batch in data:
            for image, label in zip(*_two(batch), strict=True):
                yield image, named(label)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        named = _namer(data)
        for index in range(len(data)):
            image, label = _two(data[index])
            yield image, named(label)
    else:
        kind = type(data).__name__
        raise UserError(f"cannot learn from a {kind}; give a folder, a pair of arrays, a Dataset or a DataLoader")


def _namer(dataset: Any) -> Callable[[Any], Any]:
    """What a label is called: a number is a place among the dataset's `classes`, if it has them."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):  # a part of another
        dataset = dataset.dataset
    classes = list(getattr(dataset, "classes", ()))

    def named(label: Any) -> Any:
        place = label.tolist() if hasattr(label, "tolist") else label
        if not classes or not isinstance(place, int):
            return label
        if not 0 <= place < len(classes):
            raise UserError(f"the label {place} is of none of the dataset's {len(classes)} classes")
        return classes[place]

    return named


def _two(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        what = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
        raise UserError(f"each item is an image and its label, got {what}")
    return item[0], item[1]


def _is_pair(item: Any) -> bool:
    """Whether it is an image and its label, and not a list of images."""
    is_two = isinstance(item, tuple | list) and len(item) == 2
    return is_two and (isinstance(item[1], str | int | float) or getattr(item[1], "ndim", 1) == 0)


def _sized(image: Any, size: int) -> Tensor:
    """One image of any kind as bytes [3, size, size]: its middle square, resized."""
    if isinstance(image, Image.Image):
        try:
            picture = upright(image)
        except (OSError, ValueError) as error:  # it is damaged, or has pixels of another kind
            raise UserError(f"an image cannot be read ({error}); replace it or take it out") from error
    else:
        picture = _picture(image).convert("RGB")
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1)))


def _picture(image: Any) -> Image.Image:
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
        if (
            not array.size
            or not np.issubdtype(array.dtype, np.floating)
            or not np.isfinite(array).all()
            or array.min() < 0
            or array.max() > 1
        ):
            span = f" from {array.min()} to {array.max()}" if array.size else " without any"
            raise UserError(f"pixels are bytes, or numbers from 0 to 1; got {array.dtype}{span}")
        array = np.rint(array * 255).astype(np.uint8)
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def class_name(label: Any) -> str:
    """A label as a class's name: a text, or a whole number."""
    plain = label.tolist() if hasattr(label, "tolist") else label
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if not isinstance(plain, str | int) or not str(plain).strip():
        raise UserError(f"a label is a text or a whole number, got {label!r}")
    name = unicodedata.normalize("NFC", str(plain))  # systems write one letter in two ways
    if name == UNKNOWN:
        raise UserError(f"a class cannot be called {name!r}, which `predict --min-probability` answers; rename it")
    if not name.isprintable():  # also what a file system could not decode
        raise UserError(f"the class {name!r} has a name that cannot be printed; rename it")
    return name


def _joined(images: Sequence[Tensor], names: Sequence[str]) -> Labelled:
    if not images or len(images) != len(names):
        raise UserError(
            f"there are {len(images)} images and {len(names)} labels; give one label an image, and at least one"
        )
    class_names = tuple(sorted(set(names)))
    place = {name: label for label, name in enumerate(class_names)}
    return Labelled(torch.stack(list(images)), torch.tensor([place[name] for name in names]), class_names)
