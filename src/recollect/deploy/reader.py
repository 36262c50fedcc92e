"""The learner of a model, and reading images with it: calibrated probabilities and features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recollect.core.discriminant import shrinkages
from recollect.core.identity import Identity
from recollect.deploy.model import EARLIER_IDENTITY, Model, Settings
from recollect.device import reading_batch_size, to_host
from recollect.engine import Runtime
from recollect.errors import UserError
from recollect.methods import Schedule, build_backbone, build_learner
from recollect.methods._rfe_config import RFEConfig
from recollect.methods.rfe import RFELearner
from recollect.nets import backbones
from recollect.nets import is_pretrained as has_pretrained_weights
from recollect.nets.weights import restoring
from recollect.reading import read_batches
from recollect.registry import lookup
from recollect.rng import Key
from recollect.streams import Pixels, TaskInfo, split_rows

PRETRAINED_RATE = 0.6
"""A pretrained network is trained at this share of the learning rate, which rises and falls."""
PRETRAINED_ALPHA = 4.0
"""A pretrained network is held to its old features this many times as strongly."""
ANCHOR = "identity.rule.anchor."
LOSSES, EARLIER_LOSSES = f"{ANCHOR}prior_losses", (f"{ANCHOR}held_losses", f"{ANCHOR}losses")
"""Of held-out images; earlier versions recorded none, or those of fixed shrinkages, with or without temperatures."""
EARLIER_SHRINKAGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
OLD_PREFIX, NEW_PREFIX = "means.", "identity.rule."  # of the class means, in models of earlier versions and today


def new_learner(
    settings: Settings, backbone: nn.Module | None = None, patience: int = 0, *, restored: bool = True
) -> RFELearner:
    """A learner before its first task; one that is about to be restored loads no pretrained weights."""
    key = Key(settings.seed) / "learner"
    shape = (3, settings.image_size, settings.image_size)
    check_backbone(settings, backbone)
    backbone = deepcopy(backbone)  # the caller's module is not trained
    if backbone is None:
        with restoring() if restored else nullcontext():
            backbone = build_backbone(settings.backbone, settings.backbone_options, shape, key)
    identity: Identity = settings.identity if settings.identity != "auto" else "forward"
    if settings.identity == "auto" and is_pretrained(settings, backbone):
        identity = "anchored"
    config = RFEConfig(
        alpha=settings.alpha,
        identity=identity,
        gentle="pretrained",
        form=settings.form,
        components=settings.components,
        averaging=settings.averaging,
    )
    if settings.identity == EARLIER_IDENTITY:
        config = replace(config, gentle="never")
    is_gentle = config.gentle == "pretrained" and getattr(backbone, "normalisation", None) is not None
    rate = settings.learning_rate * (PRETRAINED_RATE if is_gentle else 1.0)
    if settings.averaging:
        config = replace(config, alpha=0.0)
    elif is_gentle and settings.identity != "auto":
        config = replace(config, alpha=PRETRAINED_ALPHA * settings.alpha)
    schedule = Schedule(settings.epochs, rate, patience)
    return build_learner(RFELearner, config, backbone, shape, schedule, key, flips=settings.flip)


def restore_learner(model: Model, runtime: Runtime, backbone: nn.Module | None = None, patience: int = 0) -> RFELearner:
    """The learner of a model on the runtime's device, with the model's tasks learned."""
    learner = new_learner(model.settings, backbone, patience)
    for info, task in zip(task_infos(model), model.tasks, strict=True):
        learner.adapts = task.adapted
        learner.begin_task(info)
    tensors = {_current_name(name): tensor for name, tensor in model.tensors.items()}
    empty = learner.deployable_state().get(LOSSES)
    try:
        if empty is not None and LOSSES not in tensors:
            tensors |= {LOSSES: _current_losses(tensors, empty), f"{ANCHOR}forgotten": torch.tensor(0)}
        learner.load_deployable_state(tensors)
    except (RuntimeError, KeyError) as error:
        raise UserError(f"the model's weights do not fit its settings ({error})") from error
    runtime.place(learner)
    return learner


def _current_name(name: str) -> str:
    return f"{NEW_PREFIX}{name.removeprefix(OLD_PREFIX)}" if name.startswith(OLD_PREFIX) else name


def _current_losses(tensors: dict[str, Tensor], empty: Tensor) -> Tensor:
    """Losses of priors, from those of fixed shrinkages in an earlier version's tensors, which are taken out of them.

    They are those of the shrinkage that was chosen, and larger the farther a prior's shrinkage is from it.
    """
    earlier = [tensors.pop(name) for name in EARLIER_LOSSES if name in tensors]
    if not earlier:
        return empty
    losses = earlier[0].to(empty).reshape(len(EARLIER_SHRINKAGES), -1)
    chosen = int(losses.amin(dim=1).argmin())
    counts = tensors[f"{ANCHOR}statistics.counts"]
    now = torch.tensor(shrinkages(int(counts.sum() - (counts > 0).sum())))
    distance = (now / EARLIER_SHRINKAGES[chosen]).log().abs()
    return (losses[chosen] * (1 + distance[:, None])).expand_as(empty).to(empty)


def check_backbone(settings: Settings, backbone: nn.Module | None) -> None:
    """Refuse a module for a model with a named backbone, and no module for a model with a custom one."""
    if settings.backbone == "own":
        if backbone is None:
            raise UserError("this model has a custom backbone; pass the same module as backbone=")
    elif backbone is not None:
        raise UserError(f"this model has the backbone {settings.backbone!r}; leave out backbone=")
    else:
        lookup("backbone", backbones(), settings.backbone)  # the package that provides it may be missing


def is_pretrained(settings: Settings, backbone: nn.Module | None = None) -> bool:
    """Whether a new model starts with weights that need no training to be of use."""
    if backbone is not None:
        return getattr(backbone, "normalisation", None) is not None
    return has_pretrained_weights(settings.backbone, settings.backbone_options)


def task_infos(model: Model) -> list[TaskInfo]:
    return [TaskInfo(index, task.name, task.units) for index, task in enumerate(model.tasks)]


def make_pixels(model: Model) -> Pixels:
    return Pixels(model.mean, model.std, padding=model.settings.image_size // 8, flip=model.settings.flip)


class Outputs(NamedTuple):
    """Uncalibrated log-probabilities of images, on the host."""

    across: Tensor
    """Over all units [n, units]."""
    within: Tensor
    """Over the units of each task, side by side [n, units]."""


class Reader:
    """Predicts with a model's learner, which must not change meanwhile."""

    def __init__(self, model: Model, learner: RFELearner, runtime: Runtime) -> None:
        self.model, self.learner, self.runtime = model, learner.eval(), runtime
        self._pixels = make_pixels(model)
        self._shares = unit_shares(model)
        self._scores = learner.reader(runtime.dtype)

    @classmethod
    def of(cls, model: Model, device: str = "auto", backbone: nn.Module | None = None) -> Reader:
        """The reader of a model that is not in memory as a learner yet."""
        runtime = Runtime.choose(device, "fp32")
        return cls(model, restore_learner(model, runtime, backbone), runtime)

    @torch.inference_mode()
    def outputs(self, images: Tensor) -> Outputs:
        """One pass over uint8 images [n, 3, size, size]."""
        sizes = self.learner.network.sizes()

        def read(x: Tensor) -> Tensor:
            with self.runtime.autocast():
                scores = self._scores(x)
            return to_host(scores.cil.log_softmax(1))

        batches = list(read_batches(read, plain_batches(images, self._pixels, self.runtime), self.runtime.device))
        across = torch.cat(batches) if batches else torch.zeros(0, sum(sizes))
        return Outputs(across, torch.cat([part.log_softmax(1) for part in across.split(sizes, 1)], 1))

    def probabilities(self, outputs: Outputs, task: int | None = None) -> Tensor:
        """Calibrated probabilities of all classes [n, classes] or, with a task, of its own classes.

        A class with several units has the sum of their probabilities within a task, and the mean over tasks.
        """
        if task is not None:
            learned, units = self.model.tasks[task], self.learner.network.units(task)
            return _sum_units((outputs.within[:, units] / learned.temperature).softmax(1), learned.units)
        return _sum_units((outputs.across / self.model.temperature + self._shares).softmax(1), self.model.units)

    def features(self, images: Tensor, task: int | None = None) -> Tensor:
        """Current features or, with a task, an estimate of those that the model computed right after learning it."""
        return compute_features(self.learner, images, self._pixels, self.runtime, task)


def _sum_units(probabilities: Tensor, units: Sequence[str]) -> Tensor:
    """Probabilities of classes [n, classes] in the order of their first units, from those of units [n, units]."""
    owner = unit_owners(units)
    return torch.zeros(len(probabilities), len(set(units))).index_add_(1, owner, probabilities)


def unit_owners(units: Sequence[str]) -> Tensor:
    """The index of each unit's class; classes are in the order of their first units."""
    indices = {name: index for index, name in enumerate(dict.fromkeys(units))}
    return torch.tensor([indices[name] for name in units], dtype=torch.int64)


def unit_shares(model: Model) -> Tensor:
    """The log of each unit's share of its class.

    Rules take all units for equally likely, but a class that returned has units in several tasks.
    """
    times = Counter(name for task in model.tasks for name in set(task.units))
    return -torch.tensor([times[name] for name in model.units]).float().log()


@torch.inference_mode()
def compute_features(
    learner: RFELearner, images: Tensor, pixels: Pixels, runtime: Runtime, task: int | None = None
) -> Tensor:
    """The learner's features [n, d] of images, on the host; with a task, their estimate in its feature space."""
    learner.eval()
    features = []
    for x in plain_batches(images, pixels, runtime):
        with runtime.autocast():
            current, estimates = learner.features(x)
        features.append(to_host((current if task is None else estimates[task]).float()))
    return torch.cat(features) if features else torch.zeros(0, learner.network.feature_dim)


def plain_batches(images: Tensor, pixels: Pixels, runtime: Runtime) -> Iterator[Tensor]:
    """Normalised images on the device, in order."""
    for part in split_rows(images, reading_batch_size(images, runtime.device)):
        yield pixels.normalise(part.to(runtime.device))
