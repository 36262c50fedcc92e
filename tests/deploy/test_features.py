"""Which layers of a pretrained backbone a new model reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect import ContinualClassifier
from recollect.core import Discriminant
from recollect.deploy import ModelStore, features
from recollect.nets.efficientnet import EfficientNetLite
from tests.deploy.support import SMALL, digits


def make(**options: Any) -> ContinualClassifier:
    return ContinualClassifier("efficientnet-lite0", **SMALL, **options)


@pytest.mark.parametrize("better", ["last", "blocks"])
def test_a_new_model_reads_the_layers_that_classify_its_first_images_better(
    better: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = EfficientNetLite.forward

    def blurred(network: EfficientNetLite, x: torch.Tensor) -> torch.Tensor:
        """Features that say nothing of the image, unless they are those that are to be better."""
        f = forward(network, x)
        return f if network.reads_blocks == (better == "blocks") else torch.zeros_like(f)

    monkeypatch.setattr(EfficientNetLite, "forward", blurred)
    images, names = digits("may")
    model = make().learn((images[:40], names[:40]), task="may")
    assert model.settings.backbone_options == {"features": better}


def test_a_model_folder_records_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"last": 2.0, "blocks": 1.0}
    monkeypatch.setattr(features, "_held_out_loss", lambda settings, *_: losses[settings.backbone_options["features"]])
    store = ModelStore(tmp_path / "model")
    for task in ("may", "june"):
        images, names = digits(task)
        store.learn((images[:40], names[:40]), task, None if store.versions() else make().settings, device="cpu")
        losses = dict.fromkeys(losses, float("nan"))  # a model that exists chooses nothing
        assert ContinualClassifier.load(store.folder, device="cpu").settings.backbone_options == {"features": "blocks"}


def test_what_is_given_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("nothing is to be chosen")

    monkeypatch.setattr(features, "_held_out_loss", refuse)
    images, names = digits("may")
    for options in ({"features": "last"}, {"features": "blocks"}, {"weights": "none"}):
        model = make(**options).learn((images[:30], names[:30]), task="may", adapt="weights" in options)
        assert model.settings.backbone_options == options
    assert make(features="blocks").learn((images[:30], names[:30]), task="may").features(images[:2]).shape == (2, 1808)


def test_one_class_leaves_the_default() -> None:
    images, names = digits("may")
    chosen = images[np.array(names) == "0"][:20]
    with pytest.warns(UserWarning, match="a single class"):
        model = make().learn((chosen, ["0"] * len(chosen)), task="may")
    assert model.settings.backbone_options == {"features": "last"}


def test_validation_images_do_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """They measure the model later, so they must not have shaped it."""
    seen = []
    monkeypatch.setattr(Discriminant, "choose", lambda self, z, labels: seen.append(len(labels)))
    images, names = digits("may")
    make().learn((images[:40], names[:40]), task="may")
    assert seen[:2] == [34, 34]  # of each kind of features; six of forty images are held out for validation
