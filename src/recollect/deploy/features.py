"""Which layers of a pretrained backbone a new model reads: those that classify its first images best."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from recollect.core import Discriminant, folded, held_out
from recollect.deploy.data import Labelled
from recollect.deploy.learning import split_images
from recollect.deploy.model import Settings
from recollect.deploy.reader import is_pretrained, plain_batches
from recollect.device import at_least_single, to_device
from recollect.engine import Runtime
from recollect.methods import build_backbone
from recollect.nets import backbones
from recollect.rng import Key
from recollect.streams import Pixels

MAX_IMAGES, MIN_PER_CLASS = 400, 10
"""About how many images decide, and how many of each class at least, if there are so many."""
MARGIN = 0.05
"""By how much the cross-entropy of another kind must be smaller than that of the preferred one: less is chance."""


def choose_features(settings: Settings, data: Labelled, runtime: Runtime) -> Settings:
    """Settings with the option `features` of the backbone, if it offers a choice and the settings do not name it.

    A linear discriminant of each kind of features is made of training images, and their cross-entropies on every fifth
    image of each class, held out, are compared. Where they hardly differ, the backbone's preferred kind is taken.
    """
    kinds = backbones()[settings.backbone].features
    if not kinds or "features" in settings.backbone_options or not is_pretrained(settings):
        return settings
    train, _ = split_images(data, settings.seed)
    per_class = max(MIN_PER_CLASS, MAX_IMAGES // len(data.class_names))
    rows = torch.cat([(train.labels == label).nonzero()[:per_class, 0] for label in range(len(data.class_names))])
    images, labels = train.take(rows)
    candidates = [replace(settings, backbone_options=settings.backbone_options | {"features": kind}) for kind in kinds]
    losses = [_held_out_loss(candidate, images, labels, runtime) for candidate in candidates]
    best = losses.index(min(losses))
    return candidates[best if losses[best] < losses[0] - MARGIN else 0]


@torch.inference_mode()
def _held_out_loss(settings: Settings, images: Tensor, labels: Tensor, runtime: Runtime) -> float:
    """The mean over the images held out; 0 if there are none."""
    shape = (3, settings.image_size, settings.image_size)
    backbone = build_backbone(settings.backbone, settings.backbone_options, shape, Key(settings.seed))
    runtime.place(backbone)
    read, pixels = folded(backbone, shape), Pixels(*backbone.normalisation)  # type: ignore[misc]
    z = torch.cat([at_least_single(read(x)) for x in plain_batches(images, pixels, runtime)])
    discriminant = Discriminant(z.shape[1]).to(z.device)
    discriminant.grow(int(labels.max()) + 1)
    discriminant.choose(z, to_device(labels, z.device))
    return float(discriminant.prior_losses.min()) / max(1, int(held_out(labels).sum()))
