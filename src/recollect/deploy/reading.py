"""Reading images with a model: calibrated probabilities of classes, features, and how far from what it learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.deploy.model import Model, Settings
from recollect.engine import Runtime
from recollect.engine.runtime import to_host
from recollect.errors import UserError
from recollect.methods import Schedule, build_backbone, build_learner
from recollect.methods._rfe_config import RFEConfig
from recollect.methods.rfe import RFELearner
from recollect.nets import backbones
from recollect.nets.weights import restoring
from recollect.registry import lookup
from recollect.rng import Key
from recollect.streams import Pixels, TaskInfo, split_rows

BATCH_SIZE = 64


class Outputs(NamedTuple):
    """Of some images, on the host."""

    across: Tensor
    """Logarithms of the probabilities over all units."""
    within: Tensor
    """The same given the task, for each task's units."""


CLASS_MEANS = ("means.", "identity.rule.", 1)  # what models before version 2 called them, and what they are called


def build(
    settings: Settings, backbone: nn.Module | None = None, patience: int = 0, *, restored: bool = True
) -> RFELearner:
    """A learner as the settings say, before its first task; one to be restored needs no pretrained weights."""
    key = Key(settings.seed) / "learner"
    shape = (3, settings.image_size, settings.image_size)
    check_backbone(settings, backbone)
    backbone = deepcopy(backbone)  # the caller's own stays as it is
    if backbone is None:
        with restoring() if restored else nullcontext():
            backbone = build_backbone(settings.backbone, settings.backbone_options, shape, key)
    config = RFEConfig(alpha=settings.alpha, identity="class-means")
    schedule = Schedule(settings.epochs, settings.learning_rate, patience)
    return build_learner(RFELearner, config, backbone, shape, schedule, key)


def check_backbone(settings: Settings, backbone: nn.Module | None) -> None:
    """Whether a module is given where the model has one of the user's own, and only there."""
    if settings.backbone == "own":
        if backbone is None:
            raise UserError("this model has a backbone of your own; give the same module as backbone=")
    elif backbone is not None:
        raise UserError(f"this model has the backbone {settings.backbone!r} and takes no other; leave backbone= out")
    else:
        lookup("backbone", backbones(), settings.backbone)  # a package that brought it may be gone


def infos(model: Model) -> list[TaskInfo]:
    return [TaskInfo(index, task.name, task.classes) for index, task in enumerate(model.tasks)]


def restore_learner(model: Model, runtime: Runtime, backbone: nn.Module | None = None, patience: int = 0) -> RFELearner:
    """The learner of a model on the runtime's device, with the model's tasks learned."""
    learner = build(model.settings, backbone, patience)
    for info in infos(model):
        learner.begin_task(info)
    try:
        learner.load_deployable_state(
            {name.replace(*CLASS_MEANS) if name.startswith("means.") else name: t for name, t in model.tensors.items()}
        )
    except (RuntimeError, KeyError) as error:
        raise UserError(f"the model's weights do not fit its settings ({error})") from error
    runtime.place(learner)
    return learner


def deployable_tensors(learner: RFELearner) -> dict[str, Tensor]:
    """The tensors of a learner that a model keeps, on the host."""
    return {name: to_host(tensor) for name, tensor in learner.deployable_state().items()}


class Reader:
    """Predicts with a model's learner, which must not change meanwhile."""

    def __init__(self, model: Model, learner: RFELearner, runtime: Runtime) -> None:
        self.model, self.learner, self.runtime = model, learner.eval(), runtime
        self.pixels = pixels_of(model)
        self._read = learner.reader(runtime.dtype)

    @torch.inference_mode()
    def outputs(self, images: Tensor) -> Outputs:
        """Uncalibrated."""
        across = []
        sizes = self.learner.network.sizes()
        for x in plain_batches(self.pixels, images, self.runtime):
            with self.runtime.autocast():
                scores = self._read(x)
            across.append(to_host(scores.cil.log_softmax(1)))
        found = torch.cat(across) if across else torch.zeros(0, sum(sizes))
        return Outputs(found, torch.cat([part.log_softmax(1) for part in found.split(sizes, 1)], 1))

    def probabilities(self, images: Tensor, task: int | None = None) -> Tensor:
        """Calibrated, over all units [n, units]; with a task over its own alone."""
        found = self.outputs(images)
        if task is None:
            return (found.across / self.model.temperature).softmax(1)
        units = self.learner.network.units(task)
        return (found.within[:, units] / self.model.tasks[task].temperature).softmax(1)

    def features(self, images: Tensor, task: int | None = None) -> Tensor:
        """Today's features or, with a task, an estimate of those that the model gave when it had just learned it."""
        return features_of(self.learner, self.pixels, images, self.runtime, task)


@torch.inference_mode()
def features_of(
    learner: RFELearner, pixels: Pixels, images: Tensor, runtime: Runtime, task: int | None = None
) -> Tensor:
    """The learner's features [n, d] of images, on the host; with a task, their estimate in its feature space."""
    learner.eval()
    features = []
    for x in plain_batches(pixels, images, runtime):
        with runtime.autocast():
            current, estimates = learner.features(x)
        features.append(to_host((current if task is None else estimates[task]).float()))
    return torch.cat(features) if features else torch.zeros(0, learner.network.feature_dim)


def plain_batches(pixels: Pixels, images: Tensor, runtime: Runtime) -> Iterator[Tensor]:
    """Normalised images on the device, in order."""
    for part in split_rows(images, BATCH_SIZE):
        yield pixels.plain(part.to(runtime.device))


def pixels_of(model: Model) -> Pixels:
    return Pixels(model.mean, model.std, padding=model.settings.image_size // 8, flip=model.settings.flip)


def fit_temperature(logarithms: Tensor, labels: Tensor, owner: Tensor | None = None) -> float:
    """What to divide log-probabilities by so that the labels are likeliest: a search on a fine grid, 0.2 to 20.

    With `owner`, the class of each unit, units of one class count together.

    One image in n + 2 is taken to be of any class (the rule of succession), so that few images without a mistake do not
    make the model sure of everything.
    """
    if not len(labels) or logarithms.shape[1] < 2:
        return 1.0
    grid, doubt = torch.logspace(-0.7, 1.3, 81), 1 / (len(labels) + 2)
    owner = torch.arange(logarithms.shape[1]) if owner is None else owner
    members = F.one_hot(owner, logarithms.shape[1]).float()
    losses = []
    for t in grid:
        logs = ((logarithms / t).softmax(1) @ members).clamp(min=1e-30).log()
        losses.append(F.cross_entropy(logs, owner[labels], label_smoothing=doubt))
    return float(grid[int(torch.stack(losses).argmin())])
