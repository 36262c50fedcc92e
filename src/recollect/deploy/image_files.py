"""Image files decoded by several threads: those of a folder with one sub-folder per class, and lists of paths."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recollect.deploy.pictures import read_image
from recollect.errors import UserError
from recollect.names import check_class_name
from recollect.pictures import SUFFIXES, class_pictures

CHUNK = 256  # images that threads decode at a time
MAX_IN_MEMORY = 2 << 30  # bytes of images; more are put into a file
MAX_LISTED, MAX_NAMED = 20, 5  # unreadable and other files in one message
Progress = Callable[[Iterable[Path], int], Iterable[Path]]
"""Wraps an iteration over files, given how many there are, to show its progress."""


def no_progress(paths: Iterable[Path], _num: int) -> Iterable[Path]:
    return paths


class ClassImages(NamedTuple):
    """Images [n, 3, size, size] with the class and the file of each."""

    images: Tensor
    names: list[str]
    paths: tuple[Path, ...]


def read_images_of_classes(folder: Path, size: int, progress: Progress, *, strict: bool) -> ClassImages:
    """All images of a folder.

    Files that are not images, or are damaged, are skipped with a warning; with `strict` they are errors.
    """
    strays: list[Path] = []
    classes = class_pictures(folder, None if strict else strays)
    files = [(path, check_class_name(name)) for name, paths in classes.items() for path in paths]
    images = _allocate(len(files), size)
    errors: dict[int, str] = {}

    def read(row: int) -> Path:
        path = files[row][0]
        try:
            images[row] = read_image(path, size)
        except UserError as error:
            errors[row] = str(error)
        return path

    with _decoders() as pool:
        chunks = (range(start, min(start + CHUNK, len(files))) for start in range(0, len(files), CHUNK))
        for _ in progress((path for chunk in chunks for path in pool.map(read, chunk)), len(files)):
            pass
    for what in _name_strays(strays, folder):
        warnings.warn(f"skipped {what}", stacklevel=5)
    intact = [row for row in range(len(files)) if row not in errors]
    unreadable = _listing([errors[row] for row in sorted(errors)])
    if errors and (strict or not intact):
        raise UserError(unreadable)
    if errors:
        warnings.warn(f"skipped {_count(len(errors), 'image')}: {unreadable}", stacklevel=5)
    lost = sorted({name for _, name in files} - {files[row][1] for row in intact})
    if lost:
        listed = ", ".join(map(repr, lost))
        warnings.warn(f"no image of {listed} can be read, so that nothing is learned of it", stacklevel=5)
    if errors:
        for row, source in enumerate(intact):  # in place: a copy would take the memory twice
            images[row] = images[source]
    return ClassImages(images[: len(intact)], [files[row][1] for row in intact], tuple(files[row][0] for row in intact))


def _name_strays(strays: Iterable[Path], folder: Path) -> Iterator[str]:
    """What was skipped, by what it is."""
    loose, folders, others = list[Path](), list[Path](), list[Path]()
    for path in strays:
        is_loose = path.parent == folder and path.suffix.lower() in SUFFIXES
        (folders if path.is_dir() else loose if is_loose else others).append(path)
    if loose:
        yield f"{_count(len(loose), 'image')} outside the class folders: {_names(loose)}"
    if folders:
        yield f"{_count(len(folders), 'folder')} without images: {_names(folders)}"
    if others:
        yield f"{_count(len(others), 'non-image file')}: {_names(others)}"


def read_all(images: Iterable[Any], size: int) -> list[Tensor]:
    """Each image, resized. Only paths are left to threads: a generator may reuse the array that it yields."""
    with _decoders() as pool:
        resized = [
            pool.submit(read_image, image, size) if isinstance(image, str | Path) else read_image(image, size)
            for image in images
        ]
        return [image.result() if isinstance(image, Future) else image for image in resized]


def _decoders() -> ThreadPoolExecutor:
    """As many threads as torch has; Pillow decodes without holding the interpreter's lock."""
    return ThreadPoolExecutor(torch.get_num_threads())


def _allocate(num: int, size: int) -> Tensor:
    """Room for images [num, 3, size, size]: in memory or, for very many, in a file that the system removes when closed.

    Space is reserved first: a full disk is an error here, where a page that cannot be written would end the process.
    """
    num_bytes = num * 3 * size * size
    if num_bytes <= MAX_IN_MEMORY:
        return torch.empty(num, 3, size, size, dtype=torch.uint8)
    with tempfile.TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        return torch.from_numpy(np.memmap(file, np.uint8, "w+", shape=(num, 3, size, size)))


def _listing(messages: Sequence[str]) -> str:
    more = [f"and {len(messages) - MAX_LISTED} more"] * (len(messages) > MAX_LISTED)
    return "\n".join([*messages[:MAX_LISTED], *more])


def _names(paths: Sequence[Path]) -> str:
    more = [f"and {len(paths) - MAX_NAMED} more"] * (len(paths) > MAX_NAMED)
    return ", ".join([*(path.name for path in paths[:MAX_NAMED]), *more])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
