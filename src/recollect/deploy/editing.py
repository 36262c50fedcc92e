"""Edits of the classes of a model that need no images: rename and merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from recollect.deploy.learning import identify
from recollect.deploy.model import LearnedTask, Model
from recollect.deploy.names import check_class_name, normalise
from recollect.errors import UserError

MAX_MATCHES = 3  # names that a message about an unknown class suggests


class Edited(NamedTuple):
    """The versions after and before an edit."""

    version: str
    before: str
    """Undoes the edit if it is made current."""


def rename_class(model: Model, old: str, new: str) -> Model:
    """The model with another name for a class, in all tasks that contain it."""
    old, new = find_class(model, old), check_class_name(new)
    if new in model.classes:
        remedy = "choose another name" if new == old else f"to predict both as one class, merge {old!r} into it"
        raise UserError(f"the class {new!r} already exists; {remedy}")
    return _relabel(model, {old: new})


def merge_classes(model: Model, into: str, names: Iterable[str]) -> Model:
    """The model with several classes as one, whose probability is the sum of theirs; `into` may be new or a class."""
    into, merged = check_class_name(into), {find_class(model, name) for name in names}
    if not merged - {into}:
        raise UserError(f"name at least one class to merge into {into!r}")
    if len(merged) == 1 and into not in model.classes:
        raise UserError(f"there is no class {into!r} to merge {merged.pop()!r} into; name two classes, or use rename")
    return _relabel(model, dict.fromkeys(merged, into))


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
    units = tuple(names.get(name, name) for name in task.units)
    classes = tuple(dict.fromkeys(units))
    return replace(task, classes=classes, merged_units=units if units != classes else (), images=dict(images))


def record_edit(model: Model) -> Model:
    """The model with its newest edit in its lineage, identified by the result, which names no class that is gone."""
    newest = model.tasks[-1]
    edit = identify([task.units for task in model.tasks], model.tensors)
    return replace(model, tasks=(*model.tasks[:-1], replace(newest, edits=(*newest.edits, edit))))
