"""Learning from frozen features first, and adapting the backbone on request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect import ContinualClassifier
from recollect.core import Discriminant
from recollect.deploy import Model, ModelStore, stages
from recollect.deploy.learning import learn_task
from recollect.deploy.model import Settings
from recollect.deploy.reader import new_learner
from recollect.engine import Observer
from recollect.errors import UserError
from recollect.nets.efficientnet import efficientnet_lite0
from tests.deploy.support import bits, digits
from tests.support import StopAt, StopError

LAST = {"features": "last"}
SETTINGS = Settings(backbone="efficientnet-lite0", backbone_options=LAST, image_size=32, epochs=1, batch_size=32)


def few(task: str, *, test: bool = False) -> tuple[np.ndarray, list[str]]:
    images, names = digits(task, test=test)
    return images[:40], names[:40]


def learn(folder: Path, task: str = "may", **options: Any) -> Any:
    settings = options.pop("settings", SETTINGS) if not (folder / "model.json").exists() else None
    return ModelStore(folder).learn(few(task), task, settings, device="cpu", **options)


def test_a_pretrained_backbone_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probabilities rank as a discriminant of the frozen network's features does, fitted here from nothing."""
    monkeypatch.setattr(stages, "COMPONENTS", 0)  # whose last digits depend on the order of the images
    for task in ("may", "june"):
        assert not learn(tmp_path / "model", task).model.tasks[-1].adapted
    store = ModelStore(tmp_path / "model")
    network = efficientnet_lite0((3, 32, 32)).eval()
    tensors = store.load().tensors
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensors[f"network.backbone.{name}"], tensor), name
    assert not [name for name in tensors if "retrospector" in name]

    model = ContinualClassifier.load(tmp_path / "model", device="cpu")
    discriminant = Discriminant(1280, model.reader.learner.identity.rule.anchor.shrinkage)
    with torch.no_grad():
        for number, task in enumerate(("may", "june")):
            images, names = few(task)
            f = torch.from_numpy(model.features(images))
            labels = torch.tensor([sorted(set(names)).index(name) for name in names])
            discriminant.grow(2)
            discriminant.add(f, labels + 2 * number)  # those that were validation images first are counted too
        discriminant.refresh()
        images, _ = few("june", test=True)
        scores = discriminant(torch.from_numpy(model.features(images)))
    assert (torch.from_numpy(model.predict_proba(images)).argmax(1) == scores.argmax(1)).all()


def test_adaptation_makes_a_second_version_of_the_task(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    learn(folder)
    first = learn(folder, "june")
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"minutes": 0.0}, "positive number of minutes, got 0"),
        ({"minutes": 5.0, "adapt": False}, "--minutes and --no-adapt .* contradict each other"),
        ({"force": True}, "has an effect only with --adapt"),
    ]
    for options, message in mistakes:
        with pytest.raises(UserError, match=message):
            learn(folder, "june", **options)
    assert learn(folder, "june", minutes=5.0, force=True).model.tasks[-1].unadapted == (
        first.model.tasks[-1].accuracy,
        first.model.tasks[-1].across,
    )
    store = ModelStore(folder)
    assert store.versions() == ["001-may", "002-june", "002-june-adapted"]
    assert store.current() == "002-june-adapted"
    assert [task.adapted for task in store.load().tasks] == [False, True]
    assert store.load().settings.form == "affine"
    assert [name for name in store.load().tensors if "retrospectors" in name] == [
        f"rfe.chain.retrospectors.0.{name}" for name in ("bias", "down", "up")
    ]
    assert not torch.equal(
        store.load().tensors["network.backbone.conv_stem.weight"],
        store.load("002-june").tensors["network.backbone.conv_stem.weight"],
    )
    assert learn(folder, "july").model.tasks[-1].name == "july"
    store.rollback("002-june")
    assert not store.load().tasks[-1].adapted
    assert learn(folder, "june").was_learned
    assert store.current() == "002-june"  # as it was rolled back to


def test_an_adapted_model_that_is_worse_is_kept_only_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def harmful(*arguments: Any, adapt: bool, **options: Any) -> Model:
        model = learn_task(*arguments, adapt=adapt, **options)
        return replace(model, tasks=(replace(model.tasks[0], across=10.0 if adapt else 50.0),))

    monkeypatch.setattr(stages, "learn_task", harmful)
    result = learn(tmp_path / "a", adapt=True)
    assert result.rejected is not None
    assert result.rejected.unknown == 10.0
    assert not ModelStore(tmp_path / "a").load().tasks[-1].adapted
    forced = learn(tmp_path / "b", adapt=True, force=True)
    assert forced.rejected is None
    assert forced.model.tasks[-1].unadapted.unknown == 50.0
    assert ModelStore(tmp_path / "b").load().tasks[-1].adapted
    classifier = ContinualClassifier("efficientnet-lite0", image_size=32, epochs=1, device="cpu", **LAST)
    with pytest.warns(UserWarning, match="50.0 to 10.0 %, so the adapted model was discarded; force=True keeps it"):
        classifier.learn(few("may"), task="may", adapt=True)


def test_nothing_is_adapted_without_validation_images_unless_forced(tmp_path: Path) -> None:
    images, names = digits("may")
    rows = [names.index(name) for name in sorted(set(names))] * 2  # two images of each class: none is held out
    pair = images[rows], [names[row] for row in rows]
    few_images = "too few images for a validation split|fewer than 10 images|was not adapted: without validation images"
    with pytest.warns(UserWarning, match=few_images) as caught:
        result = ModelStore(tmp_path / "a").learn(pair, "may", SETTINGS, device="cpu", adapt=True)
    assert not result.model.tasks[-1].adapted
    assert any("the network was not adapted" in str(warning.message) for warning in caught)
    with pytest.warns(UserWarning, match=few_images):
        forced = ModelStore(tmp_path / "b").learn(pair, "may", SETTINGS, device="cpu", adapt=True, force=True)
    assert forced.model.tasks[-1].adapted


def test_an_interrupted_adaptation_leaves_the_frozen_version_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    settings = replace(SETTINGS, batch_size=16)
    whole = learn(tmp_path / "whole", adapt=True, force=True, settings=settings).model
    folder = tmp_path / "cut"
    with pytest.raises(StopError):
        learn(folder, adapt=True, force=True, settings=settings, observer=StopAt(20), checkpoint_seconds=0.0)
    store = ModelStore(folder)
    assert not store.load().tasks[-1].adapted
    assert store.has_unfinished_learn()
    again = learn(folder, adapt=True, force=True).model
    assert again.tasks[-1].learn == whole.tasks[-1].learn
    for name, tensor in whole.tensors.items():
        assert torch.equal(tensor, again.tensors[name]), name
    assert not store.has_unfinished_learn()


def test_random_weights_must_be_trained_once(tmp_path: Path) -> None:
    scratch = Settings(backbone="convnet", image_size=32, epochs=1)
    with pytest.raises(UserError, match="'convnet' of a new model has random weights, which must be trained"):
        learn(tmp_path / "model", settings=scratch, adapt=False)
    assert learn(tmp_path / "model", settings=scratch).model.tasks[-1].adapted
    assert not learn(tmp_path / "model", "june", adapt=False).model.tasks[-1].adapted
    assert learn(tmp_path / "model", "july").model.tasks[-1].adapted


def test_new_pretrained_models_read_all_blocks_unless_told_otherwise(tmp_path: Path) -> None:
    last = replace(SETTINGS, backbone_options={"features": "last"})
    scratch = replace(SETTINGS, backbone_options={"weights": "none"})
    default = replace(SETTINGS, backbone_options={})
    for settings, options in ((default, {"features": "blocks"}), (last, LAST), (scratch, {"weights": "none"})):
        assert stages.complete_settings(settings, few("may")).backbone_options == options
    learn(tmp_path / "model", settings=default)
    model = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert model.settings.backbone_options == {"features": "blocks"}
    assert model.features(few("may")[0][:2]).shape == (2, 1808)


@pytest.mark.parametrize(
    ("changes", "averaging", "alpha"),
    [({}, True, 0.0), ({"alpha": 2.0}, False, 8.0), ({"backbone_options": {"weights": "none"}}, False, 1.0)],
)
def test_adaptation_continues_with_the_mean_of_weights_unless_alpha_was_given(
    changes: dict[str, Any], averaging: bool, alpha: float
) -> None:
    settings = stages.complete_settings(replace(SETTINGS, **changes), few("may"))
    assert settings.averaging == averaging
    config = new_learner(settings).config
    assert (config.averaging, config.alpha) == (averaging, alpha)


def test_an_interrupted_adaptation_in_python_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """The frozen stage is learned again, in seconds, and leaves the checkpoints of the adaptation alone."""

    def classifier() -> ContinualClassifier:
        return ContinualClassifier("efficientnet-lite0", image_size=32, epochs=2, batch_size=16, device="cpu", **LAST)

    options: dict[str, Any] = {"task": "may", "adapt": True, "force": True, "work": tmp_path / "work"}
    with pytest.raises(StopError):
        classifier().learn(few("may"), **options, observer=StopAt(20), checkpoint_seconds=0.0)
    resumed: list[str] = []

    class Watch(Observer):
        def event(self, kind: str, **fields: Any) -> None:
            resumed.append(kind)

    again = classifier().learn(few("may"), **options, observer=Watch())
    assert "resumed" in resumed
    whole = classifier().learn(few("may"), **(options | {"work": tmp_path / "whole"}))
    assert bits(again.model) == bits(whole.model)
    assert not (tmp_path / "work" / "frozen").exists()
