"""Predicting image files: each is decoded once, and one that cannot be read does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.names import UNKNOWN
from recollect.deploy.pictures import find_images, read_file
from recollect.errors import UserError

CHUNK_SIZE = 512  # images in memory at a time


def predict_files(
    classifier: ContinualClassifier,
    paths: Sequence[Path],
    task: str | None = None,
    *,
    top: int = 1,
    min_probability: float = 0.0,
    chunk_size: int = CHUNK_SIZE,
) -> list[dict[str, Any]]:
    """The path, class, probability and task of each image file, and its `top` classes; or the error in reading it.

    A folder stands for the images in it. Below `min_probability` the class is "unknown".
    """
    if top < 1:
        raise UserError(f"top is a number of classes, at least 1; got {top}")
    if not 0 <= min_probability <= 1:
        raise UserError(f"min_probability is between 0 and 1, got {min_probability:g}")
    classes = classifier.model.classes if task is None else list(classifier.task(task).classes)
    owners = {name: learned.name for learned in classifier.tasks_ for name in learned.classes}  # the newest
    predictions: list[dict[str, Any]] = []
    for path, row in _predict_chunks(classifier, list(_expand(paths)), task, chunk_size):
        if isinstance(row, UserError):
            empty = dict.fromkeys(("class", "probability", "task"))
            predictions.append({"path": str(path), **empty, "top": [], "error": str(row)})
            continue
        order = sorted(range(len(classes)), key=lambda index: -row[index])[:top]
        ranked = [
            {
                "class": classes[index],
                "probability": float(row[index]),
                "task": classifier.task(task).name if task else owners[classes[index]],
            }
            for index in order
        ]
        best = ranked[0] if row[order[0]] >= min_probability else {**ranked[0], "class": UNKNOWN, "task": None}
        predictions.append({"path": str(path), **best, "top": ranked})
    return predictions


def _expand(paths: Sequence[Path]) -> Iterator[Path]:
    """Files, and the images of folders; a folder without images stays, and is reported as unreadable."""
    for path in paths:
        yield from (find_images(path) or [path]) if path.is_dir() else [path]


def _predict_chunks(
    classifier: ContinualClassifier, files: Sequence[Path], task: str | None, chunk_size: int
) -> Iterator[tuple[Path, np.ndarray | UserError]]:
    """The probabilities of each file, or why it cannot be read."""
    for start in range(0, len(files), chunk_size):
        chunk = files[start : start + chunk_size]
        images: dict[Path, Tensor] = {}
        errors: dict[Path, UserError] = {}
        for path in chunk:
            try:
                if path.is_dir():
                    raise UserError(f"there are no images in {path}")
                images[path] = read_file(path, classifier.settings.image_size)
            except UserError as error:
                errors[path] = error
        results: dict[Path, np.ndarray | UserError] = dict(errors)
        if images:
            rows = classifier.predict_proba(torch.stack(list(images.values())), task)
            results |= dict(zip(images, rows, strict=True))
        yield from ((path, results[path]) for path in chunk)
