"""From a dataset to a stream: classes to tasks, a subset per class, a validation split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.errors import UserError
from recollect.registry import discover, lookup
from recollect.rng import Key
from recollect.streams.division import classes_of_tasks, divide, limit_classes
from recollect.streams.pixels import Pixels
from recollect.streams.protocol import Dataset, Source, StreamOptions, content_digest
from recollect.streams.shifts import check_shift, shifted
from recollect.streams.split import Split, Stream, Task, TaskInfo

MAX_CLASSES = 1_000_000


def streams() -> dict[str, Source]:
    """All registered streams."""
    return discover("recollect.streams", "STREAMS")


def open_stream(
    name: str, options: StreamOptions | None = None, seed: int = 0, data_root: str | Path | None = None
) -> Stream:
    """Load a registered stream, downloading it once if it is not found; without options it has its own.

    >>> stream = open_stream("split-digits")
    >>> len(stream.tasks), stream.image_shape, stream.tasks[0].info.class_names
    (5, (1, 32, 32), ('0', '1'))
    """
    source: Source = lookup("stream", streams(), name)
    options = source.options if options is None else options
    return build_stream(name, source.load(options, Path(data_root) if data_root else None), options, seed)


def stream_from_tensors(
    images: Tensor,
    labels: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    *,
    tasks: int | list[list[str]],
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    flip: bool = False,
    **options: Any,
) -> Stream:
    """A stream of any uint8 images [n, c, h, w] with integer labels counted from 0; `options` as in StreamOptions.

    >>> images, labels = torch.zeros(40, 3, 32, 32, dtype=torch.uint8), torch.arange(40) % 4
    >>> stream = stream_from_tensors(images, labels, images, labels, tasks=2)
    >>> [task.info.class_names for task in stream.tasks]
    [('0', '1'), ('2', '3')]
    """
    labels, test_labels = _whole_numbers(labels), _whole_numbers(test_labels)
    for what, pictures, classes in (("training", images, labels), ("test", test_images, test_labels)):
        if pictures.dtype != torch.uint8 or pictures.ndim != 4 or len(pictures) != len(classes):
            raise UserError(
                f"{what} images must be uint8 [n, c, h, w] with one label each, got {pictures.dtype} "
                f"{tuple(pictures.shape)} and {len(classes)} labels"
            )
    if not len(labels) or int(labels.min()) < 0:
        raise UserError("labels count classes from 0 and there must be at least one image")
    if images.shape[1:] != test_images.shape[1:]:
        raise UserError(
            f"test images have shape {tuple(test_images.shape[1:])}, training images {tuple(images.shape[1:])}"
        )
    num_classes = int(torch.cat([labels, test_labels]).max()) + 1
    if num_classes > MAX_CLASSES:
        raise UserError(
            f"a label is {num_classes - 1}, and there can be {MAX_CLASSES} classes; count them from 0 without gaps"
        )
    names = tuple(class_names or map(str, range(num_classes)))
    if len(set(names)) < num_classes:
        raise UserError(f"labels go up to {num_classes - 1} but there are {len(set(names))} different class names")
    dataset = Dataset(names, images, labels, test_images, test_labels, flip=flip)
    return build_stream("tensors", dataset, StreamOptions(tasks=tasks, **options), seed)


def _whole_numbers(labels: Tensor) -> Tensor:
    """Labels of any integer type; a list of numbers will do."""
    try:
        tensor = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"labels are whole numbers counted from 0; got {type(labels).__name__} ({error})") from error
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise UserError(
            f"labels are whole numbers counted from 0, one per image; got {tensor.dtype} of shape {list(tensor.shape)}"
        )
    return tensor.long()


def build_stream(name: str, dataset: Dataset, options: StreamOptions, seed: int) -> Stream:
    """Cut a dataset into tasks; every choice is drawn from the seed."""
    key = Key(seed) / "stream"
    groups = classes_of_tasks(dataset.class_names, options, key / "classes")
    rows = {label: _rows(dataset.train_labels, label) for group in groups for label in group}
    for label, own in rows.items():
        if not len(own):
            raise UserError(f"class {dataset.class_names[label]!r} has no training image; remove it from the tasks")
        rows[label] = own[torch.randperm(len(own), generator=(key / "order" / label).generator())]
    parts = divide(limit_classes(rows, options, key), groups, options)
    train_images, test_images = dataset.train_images, dataset.test_images
    test_rows = {label: _rows(dataset.test_labels, label) for label in rows}
    tests = [{label: test_rows[label] for label in group} for group in groups]
    if options.shift != "none":
        check_shift(options.shift, len(groups), train_images.shape[1])
        train_images, parts = _shift(train_images, parts, options, key, "train")
        test_images, tests = _shift(test_images, tests, options, key, "test")
    tasks: list[Task] = []
    offset = 0
    for index, part in enumerate(parts):
        train, validation, test = [], [], []
        for unit, (label, own) in enumerate(part.items(), start=offset):
            held_out = min(round(options.validation * len(own)), len(own) - 1)
            validation.append(_split(train_images, own[:held_out], unit))
            train.append(_split(train_images, own[held_out:], unit))
            if label in tests[index]:
                test.append(_split(test_images, tests[index][label], unit))
        info = TaskInfo(index, f"task {index + 1}", tuple(dataset.class_names[label] for label in part))
        tasks.append(Task(info, *map(Split.concatenate, (train, validation, test))))
        offset += len(part)
    shape = train_images.shape[1:]
    if options.crop_padding > min(shape[1:]):
        raise UserError(f"crop_padding={options.crop_padding} is more than the images' {min(shape[1:])} pixels")
    mean, std = dataset.mean, dataset.std
    if mean is None or std is None:
        mean, std = channel_statistics(tasks[0].train)
    moves = options.shift != "permuted"  # neighbouring pixels no longer lie side by side
    pixels = Pixels(mean, std, options.crop_padding if moves else 0, dataset.flip and moves)
    arrays = (dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels)
    digest = dataset.digest or content_digest(dataset.class_names, *arrays)
    return Stream(name, tuple(tasks), pixels, (shape[0], shape[1], shape[2]), digest)


def _shift(
    images: Tensor, parts: Sequence[Mapping[int, Tensor]], options: StreamOptions, key: Key, split: str
) -> tuple[Tensor, list[dict[int, Tensor]]]:
    """All tasks' own versions of their images as one array, and their rows in it."""
    versions: list[Tensor] = []
    moved: list[dict[int, Tensor]] = []
    first = 0
    for task, part in enumerate(parts):
        used = torch.cat(list(part.values()))
        versions.append(shifted(images[used], options.shift, task, len(parts), key / "shift", split))
        rows = torch.arange(first, first + len(used)).split([len(own) for own in part.values()])
        moved.append(dict(zip(part, rows, strict=True)))
        first += len(used)
    return torch.cat(versions), moved


def channel_statistics(split: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in [0, 1], from exact integer sums."""
    count = 0
    total = squares = torch.zeros(split.images.shape[1], dtype=torch.int64)
    for positions in torch.arange(len(split)).split(256):
        images = split.take(positions)[0].long()
        count += images.numel() // images.shape[1]
        total = total + images.sum((0, 2, 3))
        squares = squares + images.square().sum((0, 2, 3))
    mean = [int(t) / count / 255 for t in total]
    variance = [int(s) / count / 255**2 - m**2 for s, m in zip(squares, mean, strict=True)]
    return tuple(mean), tuple(max(v, 1e-6) ** 0.5 for v in variance)


def _rows(labels: Tensor, label: int) -> Tensor:
    return (labels == label).nonzero()[:, 0]


def _split(images: Tensor, rows: Tensor, unit: int) -> Split:
    return Split(images, rows, torch.full((len(rows),), unit, dtype=torch.int64))


def _given_in_python(options: StreamOptions, data_root: Path | None) -> Dataset:
    raise UserError(
        "the stream 'tensors' is made in Python; give it: stream=stream_from_tensors(...), to recollect.run or load_run"
    )


STREAMS = {"tensors": Source(load=_given_in_python, about="any uint8 tensors, from Python: stream_from_tensors(...)")}
