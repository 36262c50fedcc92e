"""What a model is and how it does: for `inspect` and `check`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.data import Labelled, read_labelled
from recollect.deploy.folder import current, load_model, note_checks, versions_of
from recollect.deploy.learning import check_name
from recollect.errors import UserError
from recollect.storage import UNFINISHED
from recollect.streams.images import is_litter


def describe(folder: Path) -> dict[str, Any]:
    """Everything about a model in plain values."""
    name = current(folder)
    model = load_model(folder, name)
    place = folder / "versions" / name
    return {
        "version": name,
        "versions": versions_of(folder),
        "damaged_versions": _damaged(folder),
        "settings": vars(model.settings),
        "tasks": [asdict(task) for task in model.tasks],
        "classes": _owners(folder),
        "bytes": sum(path.stat().st_size for path in place.iterdir()),
        "values": sum(tensor.numel() for tensor in model.tensors.values()),
        "unfinished_learn": (folder / UNFINISHED).exists(),
    }


def _damaged(folder: Path) -> list[str]:
    """Versions that cannot be gone back to."""
    found = []
    for name in versions_of(folder):
        try:
            load_model(folder, name)
        except UserError:
            found.append(name)
    return found


def _owners(folder: Path) -> dict[str, list[str]]:
    """The tasks that hold each class."""
    found: dict[str, list[str]] = {}
    for task in load_model(folder).tasks:
        for name in task.classes:
            found.setdefault(name, []).append(task.name)
    return found


@dataclass(frozen=True)
class Shift:
    """How images differ from the validation images of the newest task."""

    task: str
    num_images: int
    shift: float
    """By how many standard deviations the mean feature has moved: the root of the mean square over its values."""
    by_chance: float
    """What is expected of so many images where nothing has changed."""
    sure: float
    """Mean probability of the likeliest of all classes."""
    usual_sure: float


def measure_shift(classifier: ContinualClassifier, images: Any) -> Shift:
    """On unlabelled images."""
    task, typical = classifier.tasks_[-1].name, classifier.model.typical
    if typical is None or typical.num_images < 2:
        held = "no images were" if typical is None else "only one image was"
        raise UserError(f"{held} held out when {task!r} was learned: there is nothing to compare with")
    mean, deviation = np.array(typical.mean), np.array(typical.deviation)
    alive = deviation > 1e-6 * deviation.max()
    moved = ((classifier.features(images).mean(axis=0) - mean)[alive] / deviation[alive]) ** 2
    return Shift(
        task=task,
        num_images=len(images),
        shift=float(np.sqrt(moved.mean())),
        by_chance=float(np.sqrt(1 / len(images) + 1 / typical.num_images)),
        sure=float(classifier.predict_proba(images).max(axis=1).mean()),
        usual_sure=typical.sure,
    )


@dataclass(frozen=True)
class Checked:
    """A task of the test images."""

    task: str
    within: float
    """Percent right when the task is known."""
    across: float
    """Percent right over all classes."""
    before: float | None
    """What it is compared with: the task known or, of a task of one class, which is always right then, unknown."""
    against: str
    """When that was measured."""
    num_images: int
    of_one_class: bool = False
    is_newest: bool = False
    """Nothing was learned after it, so there is nothing to have been forgotten."""
    across_before: float | None = None
    """Percent right over all classes known then, measured when `before` was."""

    @property
    def forgetting(self) -> float | None:
        return None if self.before is None else self.before - (self.across if self.of_one_class else self.within)


def check(folder: Path, images: Path, device: str = "auto", *, keep: bool = True) -> list[Checked]:
    """Accuracy on test images laid out as task/class/, beside what it was when the task was new.

    That is the first check of the same images, if there was one before anything else was learned, which `keep` keeps;
    or the accuracy on its validation images.
    """
    version = current(folder)
    classifier = ContinualClassifier.of(load_model(folder, version), device=device)
    tasks = {task.name: task for task in classifier.tasks_}
    if not images.is_dir():
        raise UserError(
            f"{images} is no folder; give one with a sub-folder for each task, and in it one for each class"
        )
    places = {check_name(p.name): p for p in sorted(images.iterdir()) if p.is_dir() and not is_litter(p)}
    names, strangers = ([name for name in places if (name in tasks) == known] for known in (True, False))
    if not names:
        what = f"{images / strangers[0]} is of no task" if strangers else f"{images} has no sub-folders"
        raise UserError(f"{what}; name them as the tasks learned: {', '.join(tasks)}")
    if strangers:
        listed = ", ".join(strangers)
        warnings.warn(f"under {images} there are images of no task that was learned: {listed}", stacklevel=2)
    newest = classifier.tasks_[-1].name
    found, checks = [], {key: dict(value) for key, value in classifier.model.checks.items()}
    for name in sorted(names, key=list(tasks).index):
        data = read_labelled(places[name], classifier.settings.image_size)
        _refuse_unknown(data, name, tasks[name].classes)
        labels = [data.class_names[label] for label in data.labels.tolist()]
        within, across = (100 * classifier.score(data.images, labels, task) for task in (name, None))
        alone = len(tasks[name].classes) == 1
        then: Mapping[str, float | None]
        if name == newest:
            then, against = {}, "learned last"
            checks.setdefault(data.digest, {}).setdefault(name, {"within": within, "across": across})
        elif name in checks.get(data.digest, {}):
            then, against = checks[data.digest][name], "the first check"
        else:
            then, against = {"within": tasks[name].accuracy, "across": tasks[name].across}, "validation, when learned"
        before = then.get("across" if alone else "within")
        found.append(
            Checked(name, within, across, before, against, len(labels), alone, name == newest, then.get("across"))
        )
    if keep:
        note_checks(folder, version, checks)
    return found


def _refuse_unknown(data: Labelled, task: str, classes: tuple[str, ...]) -> None:
    unknown = [name for name in data.class_names if name not in classes]
    if unknown:
        raise UserError(f"the task {task!r} has no class {unknown[0]!r}; it has {', '.join(classes)}")


def as_json(checked: Checked) -> Mapping[str, Any]:
    return vars(checked) | {"forgetting": checked.forgetting}
