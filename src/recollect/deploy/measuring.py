"""What the validation images of a new task tell about a model: calibration, accuracy, drift."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.core import AffineRetrospector, GatedRetrospector
from recollect.deploy.calibration import fit_temperature
from recollect.deploy.model import LearnedTask, Model, Typical
from recollect.deploy.pseudo_features import estimate_earlier_tasks
from recollect.deploy.reader import Outputs, Reader, compute_features, is_pretrained, make_pixels, unit_shares
from recollect.device import to_host
from recollect.engine import Runtime
from recollect.methods.rfe import RFELearner
from recollect.metrics import rmse, squared_error
from recollect.streams import TaskData

IMAGES_AT_A_TIME = 2048
MIN_IMAGES, FEW_IMAGES = 10, 100  # validation images, below which a loss says nothing, or little
MAX_CONFUSION = 25.0  # points of accuracy lost when the task is unknown, above which there is a warning


def measure_validation(model: Model, reader: Reader, validation: TaskData) -> Model:
    """The model with temperatures, accuracies and feature statistics of its newest task's validation images.

    Once they have been measured, the images are counted in the learner's class statistics.
    """
    rows = torch.arange(len(validation)).split(IMAGES_AT_A_TIME)
    parts = [reader.outputs(validation.split.take(part)[0]) for part in rows]
    outputs, labels = Outputs(*(torch.cat(values) for values in zip(*parts, strict=True))), to_host(validation.labels)
    units = reader.learner.network.units(len(model.tasks) - 1)
    within = fit_temperature(outputs.within[:, units], labels - units.start)
    names = model.units
    owner = torch.tensor([names.index(name) for name in names])  # the first unit of each class
    shares, members = unit_shares(model), F.one_hot(owner, len(names)).float()
    is_correct = ((outputs.across + shares).softmax(1) @ members).argmax(1) == owner[labels]
    newest = replace(
        model.tasks[-1],
        temperature=within,
        accuracy=_percent(outputs.within[:, units].argmax(1) == labels - units.start),
        across=_percent(is_correct),
    )
    model = replace(model, tasks=(*model.tasks[:-1], newest))
    estimates = estimate_earlier_tasks(model, reader, int(is_correct.sum()), len(labels))
    if estimates is not None:
        earlier = zip(model.tasks[:-1], estimates, strict=True)
        model = replace(model, tasks=(*(replace(task, now=now) for task, now in earlier), newest))
    across = fit_temperature(outputs.across, labels, owner, shares)
    probabilities = (outputs.across / across + shares).softmax(1) @ members
    newest = replace(newest, across=_percent(probabilities.argmax(1) == owner[labels]))  # as `predict` answers
    backbone = reader.learner.network.backbone
    _warn_if_not_learned(newest, len(labels), pretrained=is_pretrained(model.settings, backbone))
    _warn_if_confused(newest, len(labels))
    _warn_if_earlier_are_confused(model.tasks[:-1], newest)
    features = to_host(reader.learner.add_images(validation))
    mean, deviation = (tuple(values.tolist()) for values in (features.mean(0), features.std(0, correction=0)))
    typical = Typical(mean, deviation, len(labels), float(probabilities.amax(1).mean()))
    return replace(model, tasks=(*model.tasks[:-1], newest), temperature=across, typical=typical)


def _percent(correct: Tensor) -> float:
    return 100 * int(correct.sum()) / len(correct)


def _warn_if_not_learned(task: LearnedTask, num_images: int, *, pretrained: bool) -> None:
    """Warn if the accuracy is within two standard errors of guessing."""
    chance = 1 / len(task.classes)
    likely = 100 * (chance + 2 * (chance * (1 - chance) / num_images) ** 0.5)
    if len(task.classes) > 1 and task.accuracy is not None and task.accuracy <= likely < 100:
        few = "with so few, " * (num_images < FEW_IMAGES)
        remedy = "more images or epochs" if pretrained else "more images or epochs, or a pretrained backbone"
        warnings.warn(
            f"only {task.accuracy:.0f} % of {num_images} validation images of {task.name!r} are right; {few}guessing "
            f"could reach {likely:.0f} %. Use {remedy}",
            stacklevel=4,
        )


def is_confused(known: float, unknown: float, num_images: int, most: float = MAX_CONFUSION) -> bool:
    """Whether many images of a task are classified correctly only with the task known, by accuracies in percent."""
    return num_images >= MIN_IMAGES and unknown < known - most


def _warn_if_confused(task: LearnedTask, num_images: int) -> None:
    if task.accuracy is None or task.across is None:
        return
    if is_confused(task.accuracy, task.across, num_images):
        warnings.warn(
            f"with the task unknown {task.across:.0f} % of the validation images of {task.name!r} are classified "
            f"correctly, with it known {task.accuracy:.0f} %: many are taken for classes of other tasks; give --task "
            "where the task is known, use more images, or merge classes that are the same",
            stacklevel=4,
        )


def _warn_if_earlier_are_confused(earlier: Sequence[LearnedTask], newest: LearnedTask) -> None:
    confused = [(task.name, task.now) for task in earlier if task.now is not None]
    listed = ", ".join(
        f"{name!r} ({now.unknown:.0f} %, with the task known {now.known:.0f} %)"
        for name, now in confused
        if is_confused(now.known, now.unknown, MIN_IMAGES)
    )
    if listed:
        warnings.warn(
            f"after {newest.name!r}, images of {listed} are probably often taken for classes of other tasks; these "
            "accuracies are estimated from class statistics, as the images are gone. Give --task where it is known, "
            "or run recollect check with test images",
            stacklevel=4,
        )


def measure_drift(
    model: Model, learner: RFELearner, images: Tensor, features_before: Tensor, runtime: Runtime
) -> Model:
    """The model with the drift since the previous task and the drift that the newest retrospector leaves.

    A retrospector that adds to the drift is replaced in the learner by the identity.
    """
    *_, previous, newest = model.tasks
    index, pixels = len(model.tasks) - 2, make_pixels(model)
    errors = [
        float(squared_error(compute_features(learner, images, pixels, runtime, task), features_before))
        for task in (None, index)
    ]
    drifted, rectified = (rmse(error, features_before.numel()) for error in errors)
    if rectified > drifted:
        warnings.warn(
            f"the correction of features for {previous.name!r} did not help (drift {drifted:.3f}, corrected "
            f"{rectified:.3f}), so it is left out; you need not do anything",
            stacklevel=4,
        )
        hop = learner.rfe.chain.retrospectors[-1]
        assert isinstance(hop, GatedRetrospector | AffineRetrospector)
        hop.pass_through()
        rectified = drifted
    return replace(model, tasks=(*model.tasks[:-1], replace(newest, drifted=drifted, rectified=rectified)))
