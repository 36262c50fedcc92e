"""Testing a model on labelled images, what each task has forgotten, and the gate that a release must pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from recollect.deploy.confusion import (
    CheckDetails,
    ClassCheck,
    WrongImage,
    answer,
    detail_classes,
    list_wrong_images,
    measure_accuracy,
)
from recollect.deploy.data import Labelled, read_labelled
from recollect.deploy.measuring import MAX_CONFUSION, is_confused
from recollect.deploy.model import Model
from recollect.deploy.reader import Reader
from recollect.deploy.versions import Checks
from recollect.errors import UserError
from recollect.names import check_task_name
from recollect.pictures import is_litter

TOLERANCE = 1e-6  # percentage points that rounding may add


@dataclass(frozen=True)
class TaskCheck:
    """The accuracy on a task's test images, in percent, and what it is compared with."""

    task: str
    within: float
    """With the task known."""
    across: float
    """Over all classes."""
    before: float | None
    """The earlier accuracy with the task known or, for a task of one class, which is then always 100 %, over all."""
    against: str
    """When the earlier accuracies were measured."""
    num_images: int
    of_one_class: bool = False
    is_newest: bool = False
    """Nothing was learned after it, so that it cannot have been forgotten."""
    across_before: float | None = None
    """The earlier accuracy over all classes learned by then."""

    @property
    def forgetting(self) -> float | None:
        """Percentage points lost since the earlier measurement."""
        return None if self.before is None else self.before - (self.across if self.of_one_class else self.within)

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"forgetting": self.forgetting}


class Objection(NamedTuple):
    """Why a task fails the check."""

    task: str
    reason: str


@dataclass(frozen=True)
class Gate:
    """What every task must fulfil for a model to pass.

    >>> Gate(max_forgetting=2.0, min_accuracy=80.0)
    Gate(max_forgetting=2.0, min_accuracy=80.0, max_confusion=25.0)
    """

    max_forgetting: float | None = None
    """Percentage points that a task may have lost."""
    min_accuracy: float | None = None
    """Percent of a task's images that must be classified correctly over all classes."""
    max_confusion: float = MAX_CONFUSION
    """Points by which a task's accuracy over all classes may be below that with the task known; 100 allows all."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not -100 <= value <= 100:
                raise UserError(f"--{name.replace('_', '-')} ({name}) is a number from -100 to 100, got {value:g}")

    def is_confused(self, check: TaskCheck) -> bool:
        """Whether many images of a task are taken for classes of other tasks."""
        return is_confused(check.within, check.across + TOLERANCE, check.num_images, self.max_confusion)

    def objections(self, check: TaskCheck) -> Iterator[Objection]:
        """Why a task does not pass; nothing if it does."""
        lost = check.forgetting
        if self.max_forgetting is not None and lost is not None and lost > self.max_forgetting + TOLERANCE:
            yield Objection(check.task, f"has lost {lost:.1f} points, more than {self.max_forgetting:g}")
        if self.max_forgetting is not None and lost is None and not check.is_newest:
            yield Objection(check.task, "has no earlier accuracy to compare with")
        if self.min_accuracy is not None and check.across < self.min_accuracy - TOLERANCE:
            below = f"{check.across:.1f} %, below {self.min_accuracy:g} %"
            yield Objection(check.task, f"has an accuracy over all classes of {below}")

    @property
    def is_set(self) -> bool:
        """Whether a limit was given, beyond the default one."""
        return self.max_forgetting is not None or self.min_accuracy is not None


@dataclass(frozen=True)
class CheckReport:
    """The accuracy on every task that has test images."""

    tasks: list[TaskCheck]
    untested: list[str]
    """Learned tasks without test images."""
    gate: Gate
    details: CheckDetails = field(default_factory=CheckDetails, repr=False)
    """Of single classes and images."""
    skipped: list[str] = field(default_factory=list)
    """Folders that are named after no learned task, or no class of their task: a misspelt one must not pass a gate."""

    @property
    def objections(self) -> list[Objection]:
        """Why the model does not pass: by the gate, and because a task is confused with others; empty if it passes."""
        objections = [objection for check in self.tasks for objection in self.gate.objections(check)]
        if self.gate.is_set:
            reason = "was not tested, as the model has no task or class of that name; rename or remove the folder"
            objections += [Objection(name, reason) for name in self.skipped]
        return objections + [
            Objection(
                check.task,
                f"is confused with other tasks: accuracy {check.across:.1f} % over all classes, "
                f"{check.within:.1f} % with the task known",
            )
            for check in self.tasks
            if self.gate.is_confused(check)
        ]

    @property
    def largest_ungated_loss(self) -> TaskCheck | None:
        """The task that lost most over all classes, if that exceeds `max_forgetting`, which looks at known tasks only.

        None if `min_accuracy` watches over it.
        """
        if self.gate.max_forgetting is None or self.gate.min_accuracy is not None:
            return None
        losses = [
            (check.across_before - check.across, check)
            for check in self.tasks
            if check.across_before is not None and not check.of_one_class
        ]
        loss, worst = max(losses, key=lambda pair: pair[0], default=(0.0, None))
        return worst if loss > self.gate.max_forgetting else None

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": not self.objections,
            "objections": [{"task": objection.task, "why": objection.reason} for objection in self.objections],
            "tasks": [check.to_json() | {"is_confused": self.gate.is_confused(check)} for check in self.tasks],
            "untested": self.untested,
            "skipped": self.skipped,
            **self.details.to_json(),
        }


def check_tasks(
    model: Model, images: Path, gate: Gate, device: str = "auto", backbone: nn.Module | None = None
) -> tuple[CheckReport, Checks]:
    """Test a model on images in folders task/class/; also the first checks of its newest task, to be recorded.

    Accuracies are compared with the first check of the same images, if that was made while the task was the newest, and
    otherwise with the accuracies on the task's validation images.
    """
    folders, skipped = _task_folders(images, [task.name for task in model.tasks])
    reader = Reader.of(model, device, backbone)
    reports: list[TaskCheck] = []
    new: Checks = {}
    classes: list[ClassCheck] = []
    wrong: list[WrongImage] = []
    tested: list[str] = []
    for index, task in enumerate(model.tasks):
        if task.name not in folders:
            continue
        data = read_labelled(folders[task.name], model.settings.image_size)
        data, unknown = _known_classes(data, task.name, task.classes)
        skipped += [f"{task.name}/{name}" for name in unknown]
        if not len(data.images):
            continue
        tested.append(task.name)
        answers = answer(reader, data, index)
        within, across = (measure_accuracy(given, answers.labels) for given in (answers.within, answers.across))
        classes += detail_classes(task.name, answers)
        wrong += list_wrong_images(task.name, data, answers)
        is_newest, of_one_class = index == len(model.tasks) - 1, len(task.classes) == 1
        first: Mapping[str, float | None]
        if is_newest:
            first, against = {}, "learned last"
            if task.name not in model.checks.get(data.digest, {}):
                new[data.digest] = {task.name: {"within": within, "across": across}}
        elif task.name in model.checks.get(data.digest, {}):
            first, against = model.checks[data.digest][task.name], "the first check"
        else:
            first, against = {"within": task.accuracy, "across": task.across}, "validation, when learned"
        before = first.get("across" if of_one_class else "within")
        reports.append(
            TaskCheck(
                task.name, within, across, before, against, len(data.images), of_one_class, is_newest,
                first.get("across"),
            )
        )  # fmt: skip
    if not tested:
        raise UserError(f"{images} has no image of a class that the model knows; there is nothing to test")
    untested = [task.name for task in model.tasks if task.classes and task.name not in tested]
    return CheckReport(reports, untested, gate, CheckDetails(classes, wrong), skipped), new


def _task_folders(images: Path, tasks: list[str]) -> tuple[dict[str, Path], list[str]]:
    """The folders of test images by task, and the names of other folders, which are reported and skipped."""
    if not images.is_dir():
        raise UserError(f"{images} is not a folder; give one with a subfolder per task, and in it one per class")
    folders = {
        check_task_name(path.name): path for path in sorted(images.iterdir()) if path.is_dir() and not is_litter(path)
    }
    unknown = [name for name in folders if name not in tasks]
    if len(unknown) == len(folders):
        what = f"{images / unknown[0]} is not named after a task" if unknown else f"{images} has no subfolders"
        raise UserError(f"{what}; name the subfolders after the learned tasks: {', '.join(tasks)}")
    if unknown:
        warnings.warn(
            f"{images} has folders that are not named after a learned task: {', '.join(unknown)}", stacklevel=5
        )
    return {name: folders[name] for name in folders if name in tasks}, unknown


def _known_classes(data: Labelled, task: str, classes: tuple[str, ...]) -> tuple[Labelled, list[str]]:
    """The images of classes that the task has, and the names of others, which are reported and skipped."""
    unknown = [name for name in data.class_names if name not in classes]
    if not unknown:
        return data, []
    has = f"it has {', '.join(classes)}" if classes else "all its classes were forgotten"
    what = f"the task {task!r} has no class {', '.join(map(repr, unknown))}; {has}"
    warnings.warn(f"{what}. These images are skipped; after rename or merge, rename their folder too", stacklevel=5)
    return data.keep(classes), unknown
