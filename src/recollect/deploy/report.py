"""What a model is and how it does: for `inspect` and `check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.data import Labelled, read_labelled
from recollect.deploy.folder import UNFINISHED, current, load_model, note_checks, versions_of
from recollect.errors import UserError


def describe(folder: Path) -> dict[str, Any]:
    """Everything about a model in plain values."""
    name = current(folder)
    model = load_model(folder, name)
    place = folder / "versions" / name
    return {
        "version": name,
        "versions": versions_of(folder),
        "settings": vars(model.settings),
        "tasks": [vars(task) for task in model.tasks],
        "classes": _owners(folder),
        "bytes": sum(path.stat().st_size for path in place.iterdir()),
        "values": sum(tensor.numel() for tensor in model.tensors.values()),
        "unfinished_learn": (folder / UNFINISHED).exists(),
    }


def _owners(folder: Path) -> dict[str, list[str]]:
    """The tasks that hold each class."""
    found: dict[str, list[str]] = {}
    for task in load_model(folder).tasks:
        for name in task.classes:
            found.setdefault(name, []).append(task.name)
    return found


@dataclass(frozen=True)
class Shift:
    """How far images lie from what a model has learned, beside how far its own validation images lay."""

    num_images: int
    distance: float
    """Mean of 1 less the cosine to the nearest class mean."""
    usual: float
    share_beyond: float
    """Share of images farther than the mean and three deviations of the validation images."""


def measure_shift(classifier: ContinualClassifier, images: Any) -> Shift:
    """On unlabelled images."""
    away = classifier.reader.distances(images)
    typical = [task.typical for task in classifier.tasks_ if task.typical is not None]
    if not typical:
        raise UserError("no images were held out when the tasks were learned, so there is nothing to compare with")
    limit = max(mean + 3 * deviation for mean, deviation in typical)
    usual = fmean(mean for mean, _ in typical)
    return Shift(len(away), float(away.mean()), usual, float((away > limit).float().mean()))


@dataclass(frozen=True)
class Checked:
    """A task of the test images."""

    task: str
    within: float
    """Percent right when the task is known."""
    across: float
    """Percent right over all classes."""
    before: float | None
    """What it is compared with."""
    against: str
    """When that was measured."""
    num_images: int

    @property
    def forgetting(self) -> float | None:
        return None if self.before is None else self.before - self.within  # None: this check is the first figure


def check(folder: Path, images: Path, device: str = "auto") -> list[Checked]:
    """Accuracy on test images laid out as task/class/, beside that of the first check, or when it was learned."""
    version = current(folder)
    classifier = ContinualClassifier.of(load_model(folder, version), device=device)
    tasks = {task.name: task for task in classifier.tasks_}
    if not images.is_dir():
        raise UserError(
            f"{images} is no folder; give one with a sub-folder for each task, and in it one for each class"
        )
    names = sorted(path.name for path in images.iterdir() if path.is_dir() and not path.name.startswith("."))
    strangers = [name for name in names if name not in tasks]
    if strangers or not names:
        what = f"{images / strangers[0]} is of no task" if strangers else f"{images} has no sub-folders"
        raise UserError(f"{what}; name them as the tasks learned: {', '.join(tasks)}")
    found, checks = [], {key: dict(value) for key, value in classifier.model.checks.items()}
    for name in sorted(names, key=list(tasks).index):
        data = read_labelled(images / name, classifier.settings.image_size)
        _refuse_unknown(data, name, tasks[name].classes)
        labels = [data.class_names[label] for label in data.labels.tolist()]
        within, across = (100 * classifier.score(data.images, labels, task) for task in (name, None))
        seen = checks.setdefault(data.digest, {})
        before, against = (seen[name], "the first check") if name in seen else (tasks[name].accuracy, "when learned")
        seen.setdefault(name, within)
        found.append(Checked(name, within, across, before, against, len(labels)))
    note_checks(folder, version, checks)
    return found


def _refuse_unknown(data: Labelled, task: str, classes: tuple[str, ...]) -> None:
    unknown = [name for name in data.class_names if name not in classes]
    if unknown:
        raise UserError(f"the task {task!r} has no class {unknown[0]!r}; it has {', '.join(classes)}")


def as_json(checked: Checked) -> Mapping[str, Any]:
    return vars(checked) | {"forgetting": checked.forgetting}
