"""What all classifiers have in common: named tasks with their classes, and probabilities of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from recollect.errors import UserError
from recollect.names import check_task_name

IMAGE_SIZES = (16, 1024)
"""The least and the largest number of pixels along a side of the images of a model."""


class TaskClasses(Protocol):
    """A learned task."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """In the order of the columns of its probabilities."""


class Classifier(Protocol):
    """What predicts images: a model folder in memory, or an exported file."""

    @property
    def tasks_(self) -> Sequence[TaskClasses]:
        """The learned tasks, in order."""

    @property
    def classes_(self) -> np.ndarray:
        """The names of all classes, in the order in which they were first learned."""

    @property
    def image_size(self) -> int:
        """Pixels along a side of the images that it reads."""

    def predict_proba(self, x: np.ndarray, task: str | None = None) -> np.ndarray:
        """Probabilities [n, classes] of uint8 images [n, 3, size, size]; with a task, of its own classes."""


def find_task(tasks: Sequence[TaskClasses], name: str) -> int:
    """The index of a learned task."""
    names = [task.name for task in tasks]
    normalised = check_task_name(name)
    if normalised not in names:
        raise UserError(f"there is no task {name!r}; the model has learned {', '.join(names)}")
    return names.index(normalised)


def find_predictable_task(tasks: Sequence[TaskClasses], name: str) -> int:
    """The index of a learned task that still has classes."""
    index = find_task(tasks, name)
    if not tasks[index].classes:
        raise UserError(f"all classes of the task {name!r} were forgotten; leave out the task")
    return index
