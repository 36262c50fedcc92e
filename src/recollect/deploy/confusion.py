"""What a check tells about single classes and images: accuracy per class, confused pairs, and the wrong images."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from recollect.deploy.data import Labelled
from recollect.deploy.reader import Reader

THUMBNAIL_SIZE = 96  # pixels
MAX_THUMBNAILS = 12  # per task and confused pair; the most confident mistakes have one


class Answers(NamedTuple):
    """The classes of a task's test images, and those that the model gives them, each [n]."""

    labels: np.ndarray
    within: np.ndarray
    """With the task known."""
    across: np.ndarray
    """Over all classes."""
    probabilities: np.ndarray
    """Of the classes in `across`."""


@dataclass(frozen=True)
class ClassCheck:
    """The accuracy on the test images of one class of a task, in percent."""

    task: str
    name: str
    num_images: int
    within: float
    """With the task known."""
    across: float
    """Over all classes."""


@dataclass(frozen=True)
class WrongImage:
    """A test image that is classified wrongly over all classes."""

    path: str
    task: str
    true_class: str
    predicted: str
    probability: float
    """Of the predicted class."""
    thumbnail: bytes = field(default=b"", repr=False)
    """A small JPEG file of what the network saw; empty beyond the first of a confused pair."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "thumbnail"}


class Confusion(NamedTuple):
    """How often one class was taken for another."""

    true_class: str
    predicted: str
    num_images: int
    num_tested: int
    """Test images of the true class."""

    def __str__(self) -> str:
        return f"{self.true_class} taken for {self.predicted}: {self.num_images} of {self.num_tested}"


@dataclass(frozen=True)
class CheckDetails:
    """Accuracies per class and the wrong images of all tested tasks, in the order of tasks, classes and files."""

    classes: list[ClassCheck] = field(default_factory=list)
    wrong: list[WrongImage] = field(default_factory=list)

    def count_tested(self) -> Counter[str]:
        """Test images per class; a class of several tasks has the sum."""
        counts: Counter[str] = Counter()
        for check in self.classes:
            counts[check.name] += check.num_images
        return counts

    def list_confusions(self) -> list[Confusion]:
        """The non-zero entries of the confusion matrix beside its diagonal, the largest first."""
        tested = self.count_tested()
        counts = Counter((image.true_class, image.predicted) for image in self.wrong)
        confusions = [Confusion(*pair, number, tested[pair[0]]) for pair, number in counts.items()]
        return sorted(confusions, key=lambda pair: (-pair.num_images, -pair.num_images / pair.num_tested, pair))

    def to_json(self) -> dict[str, Any]:
        return {
            "classes": [vars(check) for check in self.classes],
            "confusions": [confusion._asdict() for confusion in self.list_confusions()],
            "wrong": [image.to_json() for image in self.wrong],
        }


def answer(reader: Reader, data: Labelled, task: int) -> Answers:
    """Classify labelled images of a task in one pass, with the task known and over all classes."""
    outputs = reader.outputs(data.images)
    within = np.asarray(reader.probabilities(outputs, task)).argmax(axis=1)
    probabilities = np.asarray(reader.probabilities(outputs))
    model = reader.model
    return Answers(
        np.array(data.class_names)[np.asarray(data.labels)],
        np.array(model.tasks[task].classes)[within],
        np.array(model.classes)[probabilities.argmax(axis=1)],
        probabilities.max(axis=1),
    )


def detail_classes(task: str, answers: Answers) -> list[ClassCheck]:
    """The accuracy of each tested class of a task."""
    checks = []
    for name in sorted(set(answers.labels.tolist())):
        rows = answers.labels == name
        within, across = (measure_accuracy(given[rows], name) for given in (answers.within, answers.across))
        checks.append(ClassCheck(task, name, int(rows.sum()), within, across))
    return checks


def measure_accuracy(given: np.ndarray, labels: np.ndarray | str) -> float:
    """Percent of the given classes that are right."""
    return 100 * float(np.mean(given == labels))


def list_wrong_images(task: str, data: Labelled, answers: Answers) -> list[WrongImage]:
    """The images of a task that are classified wrongly over all classes, with thumbnails of some."""
    rows = np.flatnonzero(answers.across != answers.labels).tolist()
    num_pictured: Counter[tuple[str, str]] = Counter()
    wrong: dict[int, WrongImage] = {}
    for row in sorted(rows, key=lambda row: -answers.probabilities[row]):
        pair = str(answers.labels[row]), str(answers.across[row])
        num_pictured[pair] += 1
        thumbnail = make_thumbnail(data.images[row]) if num_pictured[pair] <= MAX_THUMBNAILS else b""
        wrong[row] = WrongImage(str(data.paths[row]), task, *pair, float(answers.probabilities[row]), thumbnail)
    return [wrong[row] for row in rows]


def make_thumbnail(image: Tensor) -> bytes:
    """An image, uint8 [3, size, size], as a small JPEG file."""
    picture = Image.fromarray(np.ascontiguousarray(np.asarray(image).transpose(1, 2, 0)))
    picture.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()
