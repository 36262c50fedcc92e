"""What a model folder contains, and how new images differ from those that the model has learned."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.data import read_images
from recollect.deploy.store import ModelStore
from recollect.deploy.versions import State, read_state
from recollect.errors import UserError


class DamagedError(UserError):
    """The current version cannot be used, or the file that names it; other versions may be intact."""

    def __init__(self, message: str, states: dict[str, State]) -> None:
        super().__init__(message)
        self.states = states

    @property
    def newest_intact(self) -> str | None:
        """The version to return to, if there is one."""
        return next((name for name, state in reversed(self.states.items()) if state == "intact"), None)


def describe(store: ModelStore) -> dict[str, Any]:
    """All that is known about a model, in plain values; raises DamagedError if its current version cannot be used."""
    try:
        version, model = store.load_current()
    except UserError as error:
        states = read_states(store)
        if not states:
            raise
        raise DamagedError(str(error), states) from error
    states = read_states(store, version)
    tasks_of_class: dict[str, list[str]] = {}
    for task in model.tasks:
        for name in task.classes:
            tasks_of_class.setdefault(name, []).append(task.name)
    return {
        "version": version,
        "versions": list(states),
        "damaged_versions": [name for name, state in states.items() if state != "intact"],
        "settings": vars(model.settings),
        "tasks": [asdict(task) for task in model.tasks],
        "classes": tasks_of_class,
        "bytes": sum(path.stat().st_size for path in store.path(version).glob("*")),
        "values": sum(tensor.numel() for tensor in model.tensors.values()),
        "unfinished_learn": store.has_unfinished_learn(),
    }


def read_states(store: ModelStore, current: str | None = None) -> dict[str, State]:
    """Whether each version can be used, oldest first, which the current one was if it is given.

    Versions that another process removes meanwhile are left out.
    """
    states: dict[str, State] = {}
    for name in store.versions():
        state = "intact" if name == current else read_state(store.path(name))
        if store.path(name).exists():
            states[name] = state
    return states


@dataclass(frozen=True)
class Shift:
    """How images differ from the validation images of the newest task."""

    task: str
    num_images: int
    shift: float
    """Root mean square over features of the difference of their means, in standard deviations."""
    by_chance: float
    """The shift expected from the number of images alone."""
    sure: float
    """Mean confidence: the mean probability of the predicted class."""
    usual_sure: float
    """Mean confidence on the validation images."""


def measure_shift(classifier: ContinualClassifier, images: Any) -> Shift:
    """Compare unlabelled images with the validation images of the newest task."""
    task, typical = classifier.tasks_[-1].name, classifier.model.typical
    if typical is None or typical.num_images < 2:
        why = "was learned with only one validation image"
        if typical is None:
            why = "was learned with no validation images, or one of its classes was forgotten"
        raise UserError(f"{task!r} {why}: there is nothing to compare with")
    images = read_images(images, classifier.settings.image_size)
    mean, deviation = np.array(typical.mean), np.array(typical.deviation)
    varies = deviation > 1e-6 * deviation.max()
    squares = ((classifier.features(images).mean(axis=0) - mean)[varies] / deviation[varies]) ** 2
    return Shift(
        task=task,
        num_images=len(images),
        shift=float(np.sqrt(squares.mean())),
        by_chance=float(np.sqrt(1 / len(images) + 1 / typical.num_images)),
        sure=float(classifier.predict_proba(images).max(axis=1).mean()),
        usual_sure=typical.sure,
    )
