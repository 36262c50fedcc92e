"""Models written before their settings named a rule for unknown tasks can still be read and learn more."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recollect import ContinualClassifier
from recollect.core.discriminant import shrinkages
from recollect.deploy import ModelStore, reader, stages
from recollect.deploy.data import read_labelled
from recollect.deploy.learning import identify, identify_learn
from recollect.deploy.model import Settings
from recollect.errors import UserError
from recollect.storage import seal
from recollect.storage.tensors import load_tensors, save_tensors
from tests.deploy.support import SMALL, digits, random_images


def make_earlier(folder: Path) -> ContinualClassifier:
    """A model as it was written: class means under their earlier name, no rule in the settings."""
    classifier = ContinualClassifier(backbone="convnet", **SMALL)
    settings = Settings(**{**vars(classifier.settings), "identity": "class-means"})
    classifier._settings = settings
    for task in ("may", "june"):
        classifier.learn(digits(task), task=task)
    classifier.save(folder)
    version = next(folder.glob("versions/002-*"))
    document = json.loads((version / "model.json").read_text())
    del document["settings"]["identity"], document["digest"]
    tensors = load_tensors(version / "weights.safetensors", document["sha256"])
    earlier = {name.replace("identity.rule.", "means."): tensor for name, tensor in tensors.items()}
    (version / "weights.safetensors").unlink()
    document["sha256"] = save_tensors(version / "weights.safetensors", earlier)
    (version / "model.json").write_text(json.dumps(seal(document, "digest")))
    return classifier


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_earlier_model_predicts_as_it_did_and_learns_more(tmp_path: Path) -> None:
    expected = make_earlier(tmp_path / "model")
    earlier = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert earlier.settings.identity == "class-means"
    images = digits("may", test=True)[0]
    assert np.array_equal(earlier.predict_proba(images), expected.predict_proba(images))
    earlier.learn((random_images(), ["x", "y"] * 12), task="july")
    earlier.save(tmp_path / "model")
    assert len(ModelStore(tmp_path / "model").load().tasks) == 3


def chosen_at(row: int, *temperatures: int) -> torch.Tensor:
    """Losses of the nine shrinkages of earlier versions, least at one of them."""
    losses = 10 * torch.ones(9, *temperatures)
    losses[(row, *(1 for _ in temperatures))] = 0.5
    return losses


@pytest.mark.parametrize(
    ("earlier", "shrinkage", "temperature"),
    [({}, "oas", 1), ({"losses": chosen_at(7)}, 0.6, 1), ({"held_losses": chosen_at(4, 8)}, 0.2, 2)],
    ids=["chose no shrinkage", "chose no temperature", "chose a shrinkage, whatever the number of images"],
)
def test_a_model_from_before_priors_predicts_as_it_did_and_learns(
    earlier: dict[str, torch.Tensor], shrinkage: float | str, temperature: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "COMPONENTS", 0)  # they came later
    classifier = ContinualClassifier(backbone="convnet", **SMALL).learn(digits("may"), task="may")
    tensors = dict(classifier.model.tensors)
    assert tensors.pop("identity.rule.anchor.prior_losses").shape == (10, 8)
    tensors |= {f"identity.rule.anchor.{name}": losses for name, losses in earlier.items()}
    model = ContinualClassifier.of(replace(classifier.model, tensors=tensors))
    images = digits("may", test=True)[0]
    assert np.array_equal(model.predict_proba(images), classifier.predict_proba(images))
    anchor = model.reader.learner.identity.rule.anchor
    assert anchor.temperature == temperature
    if isinstance(shrinkage, str):
        assert anchor.shrinkage == shrinkage
    else:
        assert anchor.shrinkage == pytest.approx(shrinkage, rel=0.5)  # the nearest that a prior amounts to
    assert len(model.learn(digits("june"), task="june").tasks_) == 2
    tensors["identity.rule.anchor.held_losses"] = torch.ones(4)
    with pytest.raises(UserError, match="weights do not fit its settings"):
        ContinualClassifier.of(replace(classifier.model, tensors=tensors)).predict(images)


@pytest.mark.parametrize("num_images", [50, 5_000, 50_000])
@pytest.mark.parametrize("row", range(9))
def test_the_prior_of_an_earlier_choice_is_the_nearest_at_any_number_of_images(num_images: int, row: int) -> None:
    counts = torch.tensor([num_images + 1])  # a mean takes one degree of freedom
    tensors = {"identity.rule.anchor.statistics.counts": counts, "identity.rule.anchor.held_losses": chosen_at(row, 8)}
    losses = reader._current_losses(tensors, torch.zeros(10, 8))
    prior, temperature = divmod(int(losses.argmin()), 8)
    assert temperature == 1
    assert prior == np.abs(np.log(np.array(shrinkages(num_images)) / reader.EARLIER_SHRINKAGES[row])).argmin()


def test_a_model_from_before_components_learns_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "COMPONENTS", 0)
    earlier = ContinualClassifier(backbone="convnet", **SMALL).learn(digits("may"), task="may")
    monkeypatch.undo()
    later = ContinualClassifier.of(earlier.model).learn(digits("june"), task="june")
    assert not any("components" in name for name in later.model.tensors)
    today = ContinualClassifier(backbone="convnet", **SMALL).learn(digits("may"), task="may")
    components = today.model.tensors["identity.rule.anchor.statistics.components"]
    assert components.shape[1] == stages.COMPONENTS


def test_new_models_use_the_identity_rule_that_follows_the_drift() -> None:
    assert ContinualClassifier(backbone="convnet", **SMALL).settings.identity == "anchored"


def test_learns_of_earlier_versions_can_be_repeated_and_adapted() -> None:
    """What identifies a learn has no settings that came later, where they have the meaning of before."""
    data = read_labelled(digits("may"), 32)
    earlier = Settings(backbone="convnet", image_size=32, epochs=1)
    values = [{name: value for name, value in asdict(earlier).items() if name != "averaging"}]
    values += ["may", data.digest, 0, True]
    assert identify_learn(earlier, None, data, "may") == identify(values, {})
    assert identify_learn(replace(earlier, averaging=True), None, data, "may") != identify(values, {})
