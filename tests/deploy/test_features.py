"""Which layers of a pretrained backbone a new model reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect import ContinualClassifier
from recollect.deploy import ModelStore, features
from recollect.deploy.data import Labelled, read_labelled
from recollect.engine import Runtime
from recollect.nets.efficientnet import EfficientNetLite
from tests.deploy.support import SMALL, digits, validation_rows


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
    losses = {"last": 1.0, "blocks": 2.0}
    monkeypatch.setattr(features, "_held_out_loss", lambda settings, *_: losses[settings.backbone_options["features"]])
    store = ModelStore(tmp_path / "model")
    for task in ("may", "june"):
        images, names = digits(task)
        store.learn((images[:40], names[:40]), task, None if store.versions() else make().settings, device="cpu")
        losses = dict.fromkeys(losses, float("nan"))  # a model that exists chooses nothing
        assert ContinualClassifier.load(store.folder, device="cpu").settings.backbone_options == {"features": "last"}


def test_what_is_given_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("nothing is to be chosen")

    monkeypatch.setattr(features, "_held_out_loss", refuse)
    images, names = digits("may")
    data = read_labelled((images[:30], names[:30]), 32)
    others = [ContinualClassifier("convnet", **SMALL), make(weights="none")]
    for model in (make(features="last"), make(features="blocks"), *others):
        assert features.choose_features(model.settings, data, Runtime.choose("cpu", "fp32")) == model.settings
    model = make(features="blocks").learn(data, task="may")
    assert model.settings.backbone_options == {"features": "blocks"}
    assert model.features(images[:2]).shape == (2, 1808)


def test_one_class_leaves_the_preferred_kind() -> None:
    images, names = digits("may")
    chosen = images[np.array(names) == "0"][:20]
    with pytest.warns(UserWarning, match="a single class"):
        model = make().learn((chosen, ["0"] * len(chosen)), task="may")
    assert model.settings.backbone_options == {"features": "blocks"}


def test_a_small_difference_is_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    images, names = digits("may")
    data = read_labelled((images[:40], names[:40]), 32)
    for last, chosen in ((1.0, "blocks"), (0.96, "blocks"), (0.94, "last"), (2.0, "blocks")):
        losses = {"last": last, "blocks": 1.0}
        monkeypatch.setattr(features, "_held_out_loss", lambda s, *_, of=losses: of[s.backbone_options["features"]])
        settings = features.choose_features(make().settings, data, Runtime.choose("cpu", "fp32"))
        assert settings.backbone_options == {"features": chosen}


def test_validation_images_do_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """They measure the model later, so they must not have shaped it."""
    shown: list[torch.Tensor] = []

    def remember(settings: object, images: torch.Tensor, *_: object) -> float:
        shown.append(images)
        return 1.0

    monkeypatch.setattr(features, "_held_out_loss", remember)
    monkeypatch.setattr(features, "MAX_IMAGES", 1000)
    images, names = digits("may")
    model = make().learn((images[:40], names[:40]), task="may")
    assert model.settings.backbone_options == {"features": "blocks"}
    data = read_labelled((images[:40], names[:40]), 32)
    validation = set(validation_rows(data.labels, 0).tolist())
    expected = data.images[[row for row in range(40) if row not in validation]]
    assert {image.numpy().tobytes() for image in shown[0]} == {image.numpy().tobytes() for image in expected}


def test_every_class_takes_part_in_the_choice_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[torch.Tensor] = []

    def remember(settings: object, images: torch.Tensor, those: torch.Tensor, *_: object) -> float:
        labels.append(those)
        return 1.0

    monkeypatch.setattr(features, "_held_out_loss", remember)
    data = Labelled(
        torch.zeros(60 * 14, 3, 32, 32, dtype=torch.uint8),
        torch.arange(60).repeat(14),
        tuple(f"{i:02}" for i in range(60)),
    )
    features.choose_features(make().settings, data, Runtime.choose("cpu", "fp32"))
    assert torch.bincount(labels[0]).tolist() == [10] * 60  # of 12 each for training: every fifth can be held out
