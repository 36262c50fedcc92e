"""Which layers of a pretrained backbone a new model reads: those that classify its first images best."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import torch

from recollect.core import Discriminant, folded
from recollect.deploy.data import Labelled
from recollect.deploy.learning import split_images
from recollect.deploy.model import Settings
from recollect.deploy.reader import is_pretrained, plain_batches
from recollect.device import at_least_single
from recollect.engine import Runtime
from recollect.methods import build_backbone
from recollect.nets import backbones
from recollect.rng import Key
from recollect.runs.settings import options_of_function
from recollect.streams import Pixels

MAX_IMAGES = 600  # that decide


def choose_features(settings: Settings, data: Labelled, runtime: Runtime) -> Settings:
    """Settings with the option `features` of the backbone, if it has one and the settings do not name it.

    A linear discriminant of each kind of features is made of training images, and their cross-entropies on every fifth
    image of each class, held out, are compared. Where nothing is held out, the backbone's default stays.
    """
    option = options_of_function("backbone", backbones()[settings.backbone].make).get("features")
    if option is None or option.name in settings.backbone_options or not is_pretrained(settings):
        return settings
    candidates = [
        replace(settings, backbone_options=settings.backbone_options | {option.name: choice})
        for choice in sorted(get_args(option.hint), key=lambda choice: bool(choice != option.default))
    ]
    return min(candidates, key=lambda candidate: _held_out_loss(candidate, data, runtime))


@torch.inference_mode()
def _held_out_loss(settings: Settings, data: Labelled, runtime: Runtime) -> float:
    """Summed over the images held out; 0 if there are none."""
    train, _ = split_images(data, settings.seed)
    step = -(-len(train) // MAX_IMAGES)
    images, labels = train.take(torch.arange(0, len(train), step))
    shape = (3, settings.image_size, settings.image_size)
    backbone = build_backbone(settings.backbone, settings.backbone_options, shape, Key(settings.seed))
    runtime.place(backbone)
    read, pixels = folded(backbone, shape), Pixels(*backbone.normalisation)  # type: ignore[misc]
    z = torch.cat([at_least_single(read(x)) for x in plain_batches(images, pixels, runtime)])
    discriminant = Discriminant(z.shape[1]).to(z.device)
    discriminant.grow(len(data.class_names))
    discriminant.choose(z, labels.to(z.device))
    return float(discriminant.prior_losses.min())
