"""Predicting image files: each is decoded once, and one that cannot be read does not stop the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from recollect.errors import UserError
from recollect.inference.tasks import Classifier, find_predictable_task
from recollect.names import UNKNOWN
from recollect.pictures import find_images, read_file

CHUNK_SIZE, FIRST_CHUNK_SIZE = 128, 8  # images in memory at a time; few at first, so that results are seen soon
Prediction = dict[str, Any]
"""The path, class, probability, task and `top` classes of an image, and the error if it cannot be read."""


class Ranking:
    """Turns the probabilities of an image into a prediction: the most probable classes and their tasks.

    Below `min_probability` the class is "unknown".
    """

    def __init__(
        self, classifier: Classifier, task: str | None = None, *, top: int = 1, min_probability: float = 0.0
    ) -> None:
        if top < 1:
            raise UserError(f"top is a number of classes, at least 1; got {top}")
        if not 0 <= min_probability <= 1:
            raise UserError(f"the minimum probability is between 0 and 1, got {min_probability:g}")
        tasks = classifier.tasks_
        chosen = tasks if task is None else [tasks[find_predictable_task(tasks, task)]]
        owners = {name: learned.name for learned in chosen for name in learned.classes}  # the newest
        self._classes, self._tasks = list(owners), list(owners.values())
        self._top, self._min_probability = top, min_probability

    def __call__(self, row: np.ndarray) -> Prediction:
        order = sorted(range(len(self._classes)), key=lambda index: -row[index])[: self._top]
        ranked = [
            {"class": self._classes[index], "probability": float(row[index]), "task": self._tasks[index]}
            for index in order
        ]
        is_known = row[order[0]] >= self._min_probability
        return {**ranked[0], **({} if is_known else {"class": UNKNOWN, "task": None}), "top": ranked}


def predict_chunks(
    classifier: Classifier,
    paths: Sequence[Path],
    task: str | None = None,
    *,
    top: int = 1,
    min_probability: float = 0.0,
    chunk_size: int = CHUNK_SIZE,
    threads: int = 0,
) -> Iterator[list[Prediction]]:
    """The predictions of image files, in order, as soon as each chunk of them has been read.

    A folder stands for the images in it, at any depth. `threads` files are decoded at a time; 0 stands for one per
    processor.
    """
    ranking = Ranking(classifier, task, top=top, min_probability=min_probability)

    def describe(path: Path, row: np.ndarray | UserError) -> Prediction:
        if isinstance(row, UserError):
            empty = dict.fromkeys(("class", "probability", "task"))
            return {"path": str(path), **empty, "top": [], "error": str(row)}
        return {"path": str(path), **ranking(row)}

    files = list(_expand(paths))
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:  # Pillow decodes without holding the interpreter's lock
        start, size = 0, min(FIRST_CHUNK_SIZE, chunk_size)
        while start < len(files):
            chunk = files[start : start + size]
            start, size = start + size, min(2 * size, chunk_size)
            rows = _read_chunk(classifier, chunk, task, pool)
            yield [describe(path, row) for path, row in zip(chunk, rows, strict=True)]


def _expand(paths: Sequence[Path]) -> Iterator[Path]:
    """Files, and the images of folders; a folder without images stays, and is reported as unreadable."""
    for path in paths:
        yield from (find_images(path) or [path]) if path.is_dir() else [path]


def _read_chunk(
    classifier: Classifier, files: Sequence[Path], task: str | None, pool: Executor
) -> list[np.ndarray | UserError]:
    """The probabilities of each file, or why it cannot be read."""

    def read(path: Path) -> np.ndarray | UserError:
        try:
            if path.is_dir():
                raise UserError(f"there are no images in {path}")
            return read_file(path, classifier.image_size)
        except UserError as error:
            return error

    contents = list(pool.map(read, files))
    images = [content for content in contents if isinstance(content, np.ndarray)]
    rows = iter(classifier.predict_proba(np.stack(images), task) if images else ())
    return [content if isinstance(content, UserError) else next(rows) for content in contents]
