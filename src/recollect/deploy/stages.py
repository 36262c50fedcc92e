"""Two speeds of learning: first from frozen features, in seconds; then, if asked, with the backbone adapted.

The adapted model is kept where validation images say that it is not worse with the task unknown.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from recollect.deploy.data import Labelled, typical_size
from recollect.deploy.learning import learn_task
from recollect.deploy.model import Accuracies, Model, Settings
from recollect.deploy.reader import is_pretrained
from recollect.engine import Observer, Runtime
from recollect.errors import UserError
from recollect.nets import backbones

IMAGE_SIZE, PRETRAINED_IMAGE_SIZE, PHOTO_SIZE = 64, 160, 224
"""From random weights; with pretrained ones (docs/backbones.md); for photos, near what these were trained with."""
EPOCHS, PRETRAINED_EPOCHS = 20, 6
COMPONENTS = 8  # of each class, as rfe-plus has


class Learned(NamedTuple):
    """The model after a task has been learned."""

    model: Model
    rejected: Accuracies | None = None
    """Validation accuracies of the adapted model, if it was worse and therefore not kept."""


class Stages(NamedTuple):
    """Which stages a learn has."""

    frozen: bool
    adapted: bool
    seconds: float = 0.0
    """Time for adaptation; 0 is no limit."""


class LearnPlan(NamedTuple):
    """What is about to be learned."""

    settings: Settings
    num_images: Mapping[str, int]
    """Per class."""
    num_learned: int
    """Tasks that the model has learned before."""
    stages: Stages


class LearnResult(NamedTuple):
    """The model after a learn."""

    model: Model
    was_learned: bool
    """Whether it had been learned before from the same images."""
    rejected: Accuracies | None = None
    """Validation accuracies of the adapted model, if it was worse and therefore not kept."""


def complete_settings(settings: Settings, data: Any, backbone: nn.Module | None = None) -> Settings:
    """Settings of a new model, with what was left open chosen by its backbone and its first images."""
    pretrained = is_pretrained(settings, backbone)
    size, epochs = settings.image_size, settings.epochs
    if not size:
        size = IMAGE_SIZE
        if pretrained:
            size = PHOTO_SIZE if typical_size(data) >= PHOTO_SIZE else PRETRAINED_IMAGE_SIZE
    form: Literal["gated", "affine"] = "affine" if pretrained else "gated"
    options = {**backbones()[settings.backbone].for_pretrained_models, **settings.backbone_options}
    return replace(
        settings,
        backbone_options=options if pretrained else settings.backbone_options,
        image_size=size,
        epochs=epochs or (PRETRAINED_EPOCHS if pretrained else EPOCHS),
        form=form,
        averaging=pretrained and settings.alpha == Settings.alpha,
        components=COMPONENTS,
    )


def choose_stages(
    settings: Settings,
    adapt: bool | None,
    minutes: float | None,
    backbone: nn.Module | None,
    *,
    is_first: bool,
    force: bool = False,
) -> Stages:
    """Pretrained backbones are read as they are and adapted on request; others are trained unless asked not to."""
    if minutes is not None and not 0 < minutes < float("inf"):
        raise UserError(f"the time for adaptation is a positive number of minutes, got {minutes:g}")
    if minutes is not None and adapt is False:
        raise UserError("--minutes and --no-adapt (minutes= and adapt=False) contradict each other; use one of them")
    adapt = True if minutes is not None else adapt
    pretrained = is_pretrained(settings, backbone)
    if adapt is False and is_first and not pretrained:
        raise UserError(
            f"the backbone {settings.backbone!r} of a new model has random weights, which must be trained; leave out "
            "--no-adapt (adapt=False) for the first task, or choose a pretrained backbone"
        )
    adapted = not pretrained if adapt is None else adapt
    if force and not adapted:
        raise UserError("--force (force=True) has an effect only with --adapt (adapt=True); add that, or leave it out")
    return Stages(frozen=pretrained or not adapted, adapted=adapted, seconds=60 * (minutes or 0.0))


def learn_in_stages(
    before: Model | None,
    settings: Settings,
    data: Labelled,
    name: str,
    runtime: Runtime,
    work: Path,
    backbone: nn.Module | None,
    stages: Stages,
    *,
    frozen: Model | None = None,
    after_frozen: Callable[[Model], object] = lambda model: None,
    force: bool = False,
    checkpoint_seconds: float = 300.0,
    observer: Observer | None = None,
    heed_signals: bool = False,
) -> Learned:
    """Learn a task; `frozen` is the model after the first stage, if that is done already."""

    first = work / "frozen" if stages.adapted else work  # its checkpoints are not those of the adaptation

    def learn(folder: Path, *, adapt: bool) -> Model:
        return learn_task(
            before, settings, data, name, runtime, folder, backbone, adapt=adapt, observer=observer,
            heed_signals=heed_signals, checkpoint_seconds=checkpoint_seconds, seconds=stages.seconds,
        )  # fmt: skip

    if stages.frozen and frozen is None:
        frozen = learn(first, adapt=False)
        after_frozen(frozen)
    if not stages.adapted:
        assert frozen is not None
        return Learned(frozen)
    if frozen is not None and _accuracies(frozen) is None and not force:
        warnings.warn(
            "the network was not adapted: without validation images nothing tells whether that is an improvement; add "
            "images, or use --force (force=True)",
            stacklevel=4,
        )
        return Learned(frozen)
    shutil.rmtree(first, ignore_errors=True)
    adapted = learn(work, adapt=True)
    if frozen is None:
        return Learned(adapted)
    without, with_it = _accuracies(frozen), _accuracies(adapted)
    if without and with_it and with_it.unknown < without.unknown and not force:
        return Learned(frozen, rejected=with_it)
    newest = replace(adapted.tasks[-1], unadapted=without)
    return Learned(replace(adapted, tasks=(*adapted.tasks[:-1], newest)))


def warn_if_rejected(learned: Learned) -> None:
    """Say that the adapted model was not kept, where no command prints it."""
    kept = _accuracies(learned.model)
    if learned.rejected is not None and kept is not None:
        warnings.warn(
            f"adaptation changed the validation accuracy of {learned.model.tasks[-1].name!r} over all classes from "
            f"{kept.unknown:.1f} to {learned.rejected.unknown:.1f} %, so the adapted model was discarded; force=True "
            "keeps it",
            stacklevel=3,
        )


def _accuracies(model: Model) -> Accuracies | None:
    task = model.tasks[-1]
    if task.accuracy is None or task.across is None:
        return None
    return Accuracies(task.accuracy, task.across)
