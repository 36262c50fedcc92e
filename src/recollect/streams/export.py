"""A stream as folders of PNG files: train/<task>/<class>/*.png to learn from, test/<task>/<class>/*.png to check."""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from recollect.errors import UserError
from recollect.storage import UNFINISHED
from recollect.streams.split import Split, Stream, Task


def export_stream(
    stream: Stream, out: Path, *, test_per_class: int = 0, advance: Callable[[], object] = lambda: None
) -> int:
    """Write every task's images; the folder appears whole or not at all. The number of images.

    Validation images go with the training images, because learning from a folder holds out its own.
    """
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder, or remove it")
    aside = out.with_name(f"{out.name}.{secrets.token_hex(8)}.{UNFINISHED}")
    num = 0
    try:
        aside.mkdir(parents=True)
        for task in stream.tasks:
            for folder, split, limit in (
                ("train", Split.concatenate([task.train, task.validation]), 0),
                ("test", task.test, test_per_class),
            ):
                for path, image in _pictures(task, split, limit):
                    path = aside / folder / path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    image.save(path)
                    advance()
                    num += 1
        os.replace(aside, out)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error}); make room, or choose another folder") from error
    finally:  # also after Ctrl-C; once renamed, there is nothing to remove
        shutil.rmtree(aside, ignore_errors=True)
    return num


def count_images(stream: Stream, test_per_class: int = 0) -> int:
    """How many images `export_stream` writes."""
    total = 0
    for task in stream.tasks:
        total += len(task.train) + len(task.validation)
        tests = Counter(task.test.labels.tolist()).values()
        total += sum(min(num, test_per_class) if test_per_class else num for num in tests)
    return total


def _pictures(task: Task, split: Split, limit: int) -> Iterator[tuple[Path, Image.Image]]:
    """The path of each image, and the image; at most `limit` per class, or all if it is 0."""
    names = {name: _folder(name) for name in (task.info.name, *task.info.class_names)}
    if len(set(names.values())) < len(names):
        raise UserError(f"two names of {task.info.name} would be one folder's; rename a class")
    first = int(min(int(part.labels.min()) for part in (task.train, task.test) if len(part)))
    written: Counter[str] = Counter()
    for position in range(len(split)):
        images, labels = split.take(torch.tensor([position]))
        name = task.info.class_names[int(labels[0]) - first]
        written[name] += 1
        if not limit or written[name] <= limit:
            array = np.asarray(images[0])
            image = Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0))
            yield Path(names[task.info.name]) / names[name] / f"{written[name]:05}.png", image


def _folder(name: str) -> str:
    """A name as a folder's."""
    if not name or name.startswith(".") or set(name) & set('/\\:*?"<>|'):
        raise UserError(f"the name {name!r} cannot be a folder's; rename the class or the task")
    return name.replace(" ", "-")
