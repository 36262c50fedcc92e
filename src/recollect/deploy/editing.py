"""Edits of the classes of a model that need no images: rename, merge and forget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from torch import nn

from recollect.deploy.learning import identify
from recollect.deploy.model import LearnedTask, Model
from recollect.deploy.reader import restore_learner
from recollect.device import to_host
from recollect.engine import Runtime
from recollect.errors import UserError
from recollect.names import check_class_name, normalise
from recollect.pictures import is_litter

MAX_MATCHES = 3  # names that a message about an unknown class suggests
MAX_NAME_BYTES = 200  # file systems allow 255
FORBIDDEN = set('/\\<>:"|?*')  # separators, and what Windows refuses
DEVICES = {"con", "prn", "aux", "nul", *(f"{name}{number}" for name in ("com", "lpt") for number in "0123456789¹²³")}


class Edited(NamedTuple):
    """The versions after and before an edit."""

    version: str
    before: str
    """Undoes the edit if it is made current."""


class Forgotten(NamedTuple):
    """The version without the forgotten classes, and the others."""

    version: str
    holders: list[str]
    """Versions that still hold what was forgotten."""
    purged: list[str]
    """Versions that were deleted."""
    before: str | None = None
    """Undoes it if it is made current; None if nothing was forgotten, or that version was deleted."""


def rename_class(model: Model, old: str, new: str) -> Model:
    """The model with another name for a class, in all tasks that contain it."""
    old, new = find_class(model, old), check_folder_name(new)
    if new in model.classes:
        remedy = "choose another name" if new == old else f"to predict both as one class, merge {old!r} into it"
        raise UserError(f"the class {new!r} already exists; {remedy}")
    return _relabel(model, {old: new})


def merge_classes(model: Model, into: str, names: Iterable[str]) -> Model:
    """The model with several classes as one; `into` may be new or a class.

    Its probability is the sum of theirs within a task, and the mean over tasks, as that of a class that returned.
    """
    into, merged = _check_merged(model, into), {find_class(model, name) for name in names}
    if not merged - {into}:
        raise UserError(f"name at least one class to merge into {into!r}")
    if len(merged) == 1 and into not in model.classes:
        raise UserError(f"there is no class {into!r} to merge {merged.pop()!r} into; name two classes, or use rename")
    relabelled = _relabel(model, dict.fromkeys(merged, into))
    return replace(relabelled, tasks=tuple(replace(task, now=None) for task in relabelled.tasks))


def _check_merged(model: Model, into: str) -> str:
    """The normalised name of a class, or a new name that is valid as a folder name."""
    return normalise(into) if normalise(into) in model.classes else check_folder_name(into)


def forget_classes(
    model: Model, names: Iterable[str], device: str = "auto", backbone: nn.Module | None = None
) -> Model:
    """The model without some classes: without their units, their means and counts, and what was measured with them.

    A task that has lost all classes stays, since the features of earlier tasks are estimated through it.
    """
    forgotten = {find_class(model, name) for name in names}
    if not forgotten:
        raise UserError("name at least one class to forget")
    if forgotten >= set(model.classes):
        raise UserError("these are all classes of the model, of which one at least must be left; delete its folder")
    learner = restore_learner(model, Runtime.choose(device, "fp32"), backbone)
    learner.forget([unit for unit, name in enumerate(model.units) if name in forgotten])
    touched = {task.name for task in model.tasks if forgotten & set(task.classes)}
    checks = {
        digest: {task: accuracies for task, accuracies in tasks.items() if task not in touched}
        for digest, tasks in model.checks.items()
    }
    return record_edit(
        replace(
            model,
            tasks=tuple(replace(_without(task, forgotten), now=None) for task in model.tasks),
            tensors={name: to_host(tensor) for name, tensor in learner.deployable_state().items()},
            typical=None if model.tasks[-1].name in touched else model.typical,
            checks={digest: tasks for digest, tasks in checks.items() if tasks},
        )
    )


def _without(task: LearnedTask, forgotten: Set[str]) -> LearnedTask:
    images = {name: num for name, num in task.images.items() if name not in forgotten}
    return _with_units(replace(task, images=images), [name for name in task.units if name not in forgotten])


def find_class(model: Model, name: str) -> str:
    """The normalised name of a class of the model."""
    normalised, classes = normalise(name), model.classes
    if normalised not in classes:
        near = ", ".join(map(repr, get_close_matches(normalised, classes, MAX_MATCHES)))
        hint = f"did you mean {near}?" if near else "`recollect inspect` lists the classes"
        raise UserError(f"the model has no class {name!r}; {hint}")
    return normalised


def _relabel(model: Model, names: Mapping[str, str]) -> Model:
    """The model with new names for some classes; units of equal names are summed when it predicts."""
    return record_edit(replace(model, tasks=tuple(_relabel_task(task, names) for task in model.tasks)))


def _relabel_task(task: LearnedTask, names: Mapping[str, str]) -> LearnedTask:
    images: Counter[str] = Counter()
    for name, num in task.images.items():
        images[names.get(name, name)] += num
    return _with_units(replace(task, images=dict(images)), [names.get(name, name) for name in task.units])


def _with_units(task: LearnedTask, units: Sequence[str]) -> LearnedTask:
    classes = tuple(dict.fromkeys(units))
    return replace(task, classes=classes, merged_units=tuple(units) if len(units) > len(classes) else ())


def record_edit(model: Model) -> Model:
    """The model with its newest edit in its lineage, identified by the result, which names no class that is gone."""
    newest = model.tasks[-1]
    edit = identify([task.units for task in model.tasks], model.tensors)
    return replace(model, tasks=(*model.tasks[:-1], replace(newest, edits=(*newest.edits, edit))))


def check_folder_name(label: str) -> str:
    """The name of a class, if it can also be the name of a folder that `learn` reads, on every file system."""
    name = check_class_name(label).strip()
    if FORBIDDEN & set(name) or name.endswith(".") or is_litter(Path(name)):
        raise UserError(
            f"the class name {name!r} cannot be the name of a folder: leave out {' '.join(sorted(FORBIDDEN))} and dots "
            "at either end"
        )
    if name.split(".")[0].strip().lower() in DEVICES:
        raise UserError(f"the class name {name!r} cannot be the name of a folder on Windows; choose another")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise UserError(f"the class name {name[:20]!r}… is too long; choose one of at most {MAX_NAME_BYTES} bytes")
    return name
