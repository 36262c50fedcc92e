"""What `predict` does and prints."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.data import UNKNOWN, read_images
from recollect.deploy.learning import check_name
from recollect.errors import UserError
from recollect.escaping import escape
from recollect.streams.images import SUFFIXES, is_litter

CHUNK = 512  # images read at a time


def predict_images(
    folder: Path, paths: Sequence[Path], task: str | None, top: int, min_probability: float, device: str
) -> list[dict[str, Any]]:
    """Of each image: path, class, probability, task, and the likeliest few; or why it cannot be read."""
    if top < 1:
        raise UserError(f"--top counts classes, at least 1; got {top}")
    if not 0 <= min_probability <= 1:
        raise UserError(f"--min-probability lies between 0 and 1, got {min_probability:g}")
    classifier = ContinualClassifier.load(folder, device=device)
    task = None if task is None else check_name(task)
    tasks = classifier.tasks_
    names = classifier.classes_.tolist()
    if task is not None:
        names = list(next((t.classes for t in tasks if t.name == task), ()))
    found: list[dict[str, Any]] = []
    for path, row in _rows(classifier, list(_files(paths)), task):
        if isinstance(row, str):
            found.append({"path": str(path), "class": None, "probability": None, "task": None, "top": [], "error": row})
            continue
        order = sorted(range(len(names)), key=lambda place: -row[place])[:top]
        shown = [
            {"class": names[place], "probability": float(row[place]), "task": task or _owner(tasks, names[place])}
            for place in order
        ]
        best = shown[0] if row[order[0]] >= min_probability else {**shown[0], "class": UNKNOWN, "task": None}
        found.append({"path": str(path), **best, "top": shown})
    return found


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as they are and those of folders; a folder without images stays, and cannot be read."""
    for path in paths:
        yield from (pictures_under(path) or [path]) if path.is_dir() else [path]


def _rows(
    classifier: ContinualClassifier, files: Sequence[Path], task: str | None
) -> Iterator[tuple[Path, np.ndarray | str]]:
    """Of each file its probabilities, or why it cannot be read."""
    for start in range(0, len(files), CHUNK):
        pictures: dict[Path, Any] = {}
        for path in files[start : start + CHUNK]:
            try:
                if path.is_dir():
                    raise UserError(f"there are no images under {path}")
                pictures[path] = read_images([path], classifier.settings.image_size)[0]
            except UserError as error:
                pictures[path] = str(error)
        readable = [path for path, picture in pictures.items() if not isinstance(picture, str)]
        rows = classifier.predict_proba([pictures[path] for path in readable], task)
        pictures |= dict(zip(readable, rows, strict=True))
        yield from ((path, pictures[path]) for path in files[start : start + CHUNK])


def pictures_under(folder: Path) -> list[Path]:
    """All images of a folder and its sub-folders, in order, links followed; says what else lies there."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder")
    files: list[Path] = []
    been: set[Path] = set()
    for place, below, names in os.walk(folder, followlinks=True):
        here = Path(place).resolve()
        below[:] = [] if here in been else [name for name in below if not is_litter(Path(name))]
        files += [Path(place, name) for name in names if here not in been and not is_litter(Path(name))]
        been.add(here)
    found = sorted(path for path in files if path.suffix.lower() in SUFFIXES)
    left = len(files) - len(found)
    if left:
        kinds = sorted({path.suffix or "no ending" for path in files if path.suffix.lower() not in SUFFIXES})
        warnings.warn(f"{left} files under {folder} that are no images are left out: {', '.join(kinds)}", stacklevel=2)
    return found


def _owner(tasks: Sequence[Any], name: str) -> str:
    """The task that holds a class; the newest of several."""
    return str([task.name for task in tasks if name in task.classes][-1])


def print_predictions(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 2))
    for title in ("image", "class", "probability", "task"):
        table.add_column(title, overflow="fold")
    for each in found:
        if "error" in each:
            table.add_row(escape(each["path"]), "–", "–", "–")
            continue
        for place, row in enumerate([each, *each["top"][1:]]):
            table.add_row(
                escape(each["path"]) if place == 0 else "",
                escape(row["class"]),
                f"{row['probability']:.3f}",
                escape(row["task"] or "–"),
            )
    console.print(table)
    for each in found:
        if "error" in each:
            console.print(f"[red]{escape(each['error'])}[/]", soft_wrap=True)
