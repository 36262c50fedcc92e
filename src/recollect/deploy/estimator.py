"""A classifier in scikit-learn's conventions: its parameters, its repr, its tags, and the labels that `score` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import numpy as np
from torch import nn

from recollect.deploy.model import LearnedTask, Settings
from recollect.engine import Runtime
from recollect.errors import UserError
from recollect.names import check_class_name
from recollect.nets import backbones
from recollect.registry import lookup
from recollect.runs.settings import check, options_of_function

PLAIN = tuple(
    field.name
    for field in fields(Settings)
    if field.name not in ("backbone", "backbone_options", "identity", "form", "averaging", "components")
)
"""Settings that are parameters of the same name."""
MAX_NAMED = 10  # classes in one message


def make_settings(backbone: Any, device: Any, precision: str, options: Mapping[str, Any], **values: Any) -> Settings:
    """The settings of a new model, from the parameters of its classifier."""
    if isinstance(backbone, type):
        raise UserError(
            f"backbone is a name or a module, got the class {backbone.__name__}; pass {backbone.__name__}()"
        )
    if not isinstance(backbone, str | nn.Module):
        raise UserError(f"backbone is a name or a module, got {backbone!r}; `recollect list` shows the names")
    if not isinstance(device, str):
        raise UserError(f"device is a name, got {device!r}; 'auto' chooses one")
    name = backbone if isinstance(backbone, str) else "own"
    checked = check_options(name, _plain(options))
    resolved = Runtime.choose(device, precision).precision
    return Settings(backbone=name, backbone_options=checked, precision=resolved, **_plain(values))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of NumPy, as a search over parameters may give them, as those of Python."""
    return {name: value.tolist() if isinstance(value, np.generic) else value for name, value in values.items()}


def check_options(backbone: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a backbone, checked for their names and types."""
    found = options_of_function("backbone", lookup("backbone", backbones(), backbone).make)
    options = {name: option for name, option in found.items() if name not in PLAIN}
    for name in given:
        if name not in options:
            near = get_close_matches(name, [*PLAIN, *options], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"parameters are {', '.join(PLAIN)}"
            own = f"options of the backbone {backbone!r}: {', '.join(options) or 'none'}"
            raise UserError(f"unknown option {name!r}; {hint} ({own})")
    return {name: check(options[name], value) for name, value in given.items()}


def parameters_of(settings: Settings, module: nn.Module | None, device: str) -> dict[str, Any]:
    """The parameters of a classifier that would create a model of such settings."""
    backbone = settings.backbone if module is None else module
    plain = {name: getattr(settings, name) for name in PLAIN}
    return {"backbone": backbone, **plain, "device": device, **settings.backbone_options}


def changed_parameters(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given parameters that are new or have another value."""

    def is_same(name: str, value: Any) -> bool:
        if name not in current:
            return False
        return current[name] is value or (type(current[name]) is type(value) and bool(current[name] == value))

    return {name: value for name, value in given.items() if not is_same(name, value)}


def describe(changed: Mapping[str, Any], tasks: Sequence[LearnedTask]) -> str:
    """The call that makes such a classifier and, as a comment, what it has learned.

    >>> describe({"backbone": "convnet", "epochs": 2}, [])
    "ContinualClassifier(backbone='convnet', epochs=2)"
    """
    values = {
        name: f"{type(value).__name__}(...)" if isinstance(value, nn.Module) else repr(value)
        for name, value in changed.items()
    }
    call = f"ContinualClassifier({', '.join(f'{name}={value}' for name, value in values.items())})"
    if not tasks:
        return call
    num_classes = len({name for task in tasks for name in task.classes})
    learned = f"{len(tasks)} task{'s' * (len(tasks) != 1)}, {num_classes} class{'es' * (num_classes != 1)}"
    return f"{call}  # {learned}"


def join_labels(x: Any, y: Any) -> Any:
    """Images and labels as `learn` takes them; without labels, x has them."""
    if y is not None:
        return (list(x) if isinstance(x, tuple) else x), y  # a tuple of two could be an image and its label
    if hasattr(x, "shape"):
        raise UserError(
            "learning from an array requires y to be passed, but the target y is None; give a label per image, or a "
            "folder, a Dataset, a DataLoader or a generator of pairs as x"
        )
    return x


def next_task(tasks: Sequence[LearnedTask]) -> str:
    """A name for one more task: "task 3" after two, or the next that is free."""
    number, names = len(tasks) + 1, {task.name for task in tasks}
    while f"task {number}" in names:
        number += 1
    return f"task {number}"


def refuse_numbers(labels: Iterable[Any], classes: Sequence[str]) -> None:
    """Refuse numbers as labels where all classes have names: which class an index stands for is not known."""
    values = (label.tolist() if hasattr(label, "tolist") else label for label in labels)
    number = next((value for value in values if isinstance(value, int | float)), None)
    if number is not None and classes and not any(name.isdecimal() for name in classes):
        raise UserError(
            f"the label {number:g} is a number, and the classes have names such as {str(classes[0])!r}; pass "
            "the names of the classes"
        )


def check_labels(labels: Iterable[Any], classes: Sequence[str]) -> list[str]:
    """The class name of each label; an error if no label is one of the classes, which would be an accuracy of 0."""
    labels = list(labels)
    refuse_numbers(labels, classes)
    names = [check_class_name(label) for label in labels]
    if names and not set(names) & set(classes):
        more = f" and {len(classes) - MAX_NAMED} more" if len(classes) > MAX_NAMED else ""
        known = ", ".join(repr(str(name)) for name in classes[:MAX_NAMED])
        raise UserError(
            f"no label is a known class: the first is {names[0]!r}, and the classes are {known}{more}; labels are "
            "names of classes"
        )
    return names


def make_tags() -> Any:
    """What scikit-learn 1.6 and later ask about an estimator: a classifier of images, which are no table."""
    from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

    return Tags(
        estimator_type="classifier",
        target_tags=TargetTags(required=True),
        classifier_tags=ClassifierTags(),
        input_tags=InputTags(two_d_array=False),
    )
