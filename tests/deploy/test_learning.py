"""Learning tasks one after the other: what is kept, what is measured, and what is refused or warned about."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recollect import ContinualClassifier
from recollect.deploy import ModelStore
from recollect.deploy.data import read_images
from recollect.deploy.inspection import measure_shift
from recollect.engine import Observer
from recollect.errors import UserError
from recollect.methods.rfe import RFELearner
from tests.deploy.support import (
    MONTHS,
    SIZE,
    SMALL,
    Tied,
    bits,
    digits,
    make_classifier,
    random_images,
    train_model,
    validation_rows,
)


@pytest.fixture(scope="module")
def learned() -> ContinualClassifier:
    model = make_classifier()
    for task in MONTHS:
        model.learn(digits(task), task=task)
    return model


def test_old_tasks_stay_accurate_and_a_repeated_class_sums_its_units(learned: ContinualClassifier) -> None:
    assert learned.classes_.tolist() == ["0", "1", "2", "3", "4"]
    for task in MONTHS:
        x, y = digits(task, test=True)
        assert learned.score(x, y, task=task) > 0.8  # half is chance
        assert learned.predict_proba(x).sum(axis=1) == pytest.approx(np.ones(len(x)), abs=1e-5)
    x, _ = digits("may", test=True)
    units = (learned.reader.outputs(read_images(x, SIZE)).across / learned.model.temperature).exp().numpy()
    units[:, [1, 4]] /= 2  # both are of the class "1", which two tasks have
    summed = (units[:, 1] + units[:, 4]) / units.sum(axis=1)
    assert learned.predict_proba(x)[:, 1] == pytest.approx(summed, abs=1e-6)
    assert learned.predict(x[:4], task="may").tolist() == digits("may", test=True)[1][:4]
    with pytest.raises(UserError, match="there is no task 'march'; the model has learned may, june, july"):
        learned.predict(x, task="march")
    with pytest.raises(UserError, match="the task 'may' is already learned"):
        learned.learn(digits("may"), task="may")


def test_a_task_with_one_new_class_can_be_learned() -> None:
    """Two classes in May, then one more: old and new classes are distinguished."""
    model = make_classifier().learn(digits("may"), task="may")
    x, y = digits("june")
    model.learn((x[[label == "2" for label in y]], ["2"] * y.count("2")), task="june")
    x, y = digits("june", test=True)
    new = x[[label == "2" for label in y]]
    old, names = digits("may", test=True)
    assert model.score(new, ["2"] * len(new)) > 0.6
    assert model.score(old, names) > 0.6


def test_learning_in_separate_processes_gives_the_same_bits(tmp_path: Path) -> None:
    """A model that is saved and loaded between tasks equals one that learns them in one process."""
    expected = make_classifier().learn(digits("may"), task="may").save(tmp_path / "model")
    expected.learn(digits("june"), task="june")
    code = (
        "import sys; from tests.deploy.support import digits; from recollect import ContinualClassifier as C\n"
        "C.load(sys.argv[1], device='cpu').learn(digits('june'), task='june').save(sys.argv[1])"
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2])
    model = ModelStore(tmp_path / "model").load()
    assert bits(model) == bits(expected.model)
    assert [task.temperature for task in model.tasks] == [task.temperature for task in expected.model.tasks]


def test_features_as_of_a_task_are_close_to_the_original_features() -> None:
    """Without the drift loss, the chain alone compensates the drift."""
    model = make_classifier(alpha=0.0, epochs=15).learn(digits("may"), task="may")
    x, _ = digits("may", test=True)
    original = model.features(x)
    model.learn(digits("june"), task="june")
    now, estimate = model.features(x), model.features(x, as_of="may")
    assert np.square(estimate - original).mean() < 0.7 * np.square(now - original).mean()
    assert (model.features(x, as_of="june") == now).all()


TRAINED_ON: list[torch.Tensor] = []


class Recorder(nn.Module):
    """A backbone that records the centre pixel of each image it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            TRAINED_ON.append(x[:, 0, 16, 16].detach().clone())
        features: torch.Tensor = self.layer(x.flatten(1))
        return features


def test_no_validation_image_is_used_for_training() -> None:
    shades = torch.arange(40) * 6  # of one colour each, which survives augmentation in the centre
    images = np.broadcast_to(shades.to(torch.uint8).numpy()[:, None, None, None], (40, 32, 32, 3))
    model = ContinualClassifier(Recorder(), **SMALL).learn((images, ["a", "b"] * 20), task="may").model
    pixels = 255 * (torch.cat(TRAINED_ON) * model.std[0] + model.mean[0])
    validation = validation_rows(torch.arange(40) % 2, 0).tolist()
    assert len(validation) == 6
    assert {round(pixel / 6) for pixel in pixels.tolist()} == set(range(40)) - set(validation)


def test_a_learn_builds_one_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = RFELearner.__init__
    monkeypatch.setattr(RFELearner, "__init__", lambda *arguments: built.append(1) or build(*arguments))
    model = train_model("may")
    model.learn((random_images(1), ["c", "d"] * 12), task="june")
    assert len(built) == 2


def test_training_stops_early_when_validation_stalls() -> None:
    class Epochs(Observer):
        def __init__(self) -> None:
            self.seen: dict[str, list[float]] = {}

        def event(self, kind: str, **fields: Any) -> None:
            if kind == "epoch":
                self.seen.setdefault(fields["phase"], []).append(sum(fields["validation"].values()))

    epochs = Epochs()
    x, y = digits("may")
    make_classifier(epochs=60, learning_rate=2e-2).learn((x[:60], y[:60]), task="may", observer=epochs)
    assert epochs.seen.keys() == {"task 1 · fit", "task 1 · retrospect"}
    for losses in epochs.seen.values():
        assert len(losses) == losses.index(min(losses)) + 7 < 60  # six more than the best


@pytest.mark.filterwarnings("ignore:fewer than 10 images", "ignore:no validation images")
def test_a_task_without_validation_images_leaves_calibration_unchanged() -> None:
    model = train_model("may")
    before, others = model.model.temperature, random_images(5)
    assert measure_shift(model, others).num_images == len(others)
    with pytest.warns(UserWarning, match="too few images for a validation split"):
        model.learn((random_images(3, 3), ["x", "y", "z"]), task="june")
    assert model.model.temperature == before
    assert model.model.typical is None
    with pytest.raises(UserError, match="'june' was learned with no validation images"):
        measure_shift(model, others)


def test_a_single_image_is_refused() -> None:
    with pytest.raises(UserError, match="a single image .of 'a'. is not enough to learn from"):
        ContinualClassifier("convnet", **SMALL).learn((random_images(num=1), ["a"]), task="may")
    with pytest.raises(UserError, match="batch size is an integer from 2"):
        ContinualClassifier("convnet", **SMALL, batch_size=1)


def test_training_from_scratch_on_few_images_is_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"training from scratch with 12 images of 'a': below about 300 per class"):
        model = make_classifier(epochs=1).learn((random_images(), ["a", "b"] * 12), task="may")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn((random_images(1), ["c", "d"] * 12), task="june")  # its weights are those of may
        own = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8))  # who knows what it was trained on
        ContinualClassifier(own, **SMALL).learn((random_images(), ["a", "b"] * 12), task="may")
    assert not [warning for warning in caught if "from scratch" in str(warning.message)]


def test_numbers_among_named_classes_are_refused_as_labels_and_warned_about_as_names() -> None:
    model = train_model().learn((random_images(), ["cat", "dog"] * 12), task="may")
    with pytest.raises(UserError, match="the label 0 is a number, and the classes have names such as 'cat'; pass"):
        model.partial_fit(random_images(1), [0, 1] * 12)
    with pytest.warns(UserWarning, match=r"are numbers \('0'\), those of the model are names \('cat'\)"):
        model.partial_fit(random_images(1), ["0", "1"] * 12)


def test_accuracy_at_chance_level_is_warned_about() -> None:
    x, y = digits("may")
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match=r"only \d+ % of \d+ .* guessing could reach .* or a pretrained backbone"):
        make_classifier(epochs=1).learn((rng.permutation(x), y), task="may")


def test_a_retrospector_that_increases_drift_is_left_out() -> None:
    model = make_classifier(epochs=4).learn(digits("may"), task="may")
    x, y = digits("june")
    two = x[[name == "2" for name in y]]
    with pytest.warns(UserWarning, match=r"for 'may' did not help \(drift 0\.\d+, corrected 0\.\d+\), so it is left"):
        model.learn((two, ["2"] * len(two)), task="june")
    newest = model.tasks_[-1]
    assert newest.drifted == newest.rectified
    assert newest.drifted is not None
    assert newest.drifted > 0
    assert np.array_equal(model.features(two), model.features(two, as_of="may"))


def test_a_custom_backbone_is_not_modified() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    before = [parameter.detach().clone() for parameter in module.parameters()]
    one, two = (
        ContinualClassifier(module, **SMALL).learn((random_images(), ["a", "b"] * 12), task="may") for _ in range(2)
    )
    for old, parameter in zip(before, module.parameters(), strict=True):
        assert torch.equal(old, parameter)
    before_june = one.features(random_images())
    two.learn((random_images(1), ["c", "d"] * 12), task="june")
    assert np.array_equal(one.features(random_images()), before_june)


@pytest.mark.filterwarnings("ignore:.*belongs to an interrupted learn")
def test_a_learn_does_not_resume_from_checkpoints_of_another_module(tmp_path: Path) -> None:
    first, second, alone = (
        ContinualClassifier(Tied(seed), **SMALL).learn((random_images(), ["a", "b"] * 12), task="may", work=work)
        for seed, work in ((0, tmp_path / "w"), (1, tmp_path / "w"), (1, None))
    )
    assert np.array_equal(second.features(random_images()), alone.features(random_images()))
    assert not np.array_equal(first.features(random_images()), second.features(random_images()))


def test_other_files_in_the_checkpoint_folder_are_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    (tmp_path / ("0" * 32)).mkdir()
    model = ContinualClassifier("convnet", **SMALL)
    with pytest.warns(UserWarning, match="belongs to an interrupted learn of other images, .*; removed"):
        model.learn((random_images(), ["a", "b"] * 12), task="may", work=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "x"


@pytest.mark.parametrize("name", ["", " ", ".aug", "2026/05", "x" * 101, "a\nb", "\udcff", 5])
def test_invalid_task_names_are_refused(name: Any) -> None:
    with pytest.raises(UserError, match="a task's name"):
        ContinualClassifier("convnet", **SMALL).learn((random_images(), ["a", "b"] * 12), task=name)


def test_classes_and_predictions_are_arrays() -> None:
    model = train_model("may", "june")
    most_probable = model.classes_[model.predict_proba(random_images()).argmax(axis=1)]
    assert most_probable.tolist() == model.predict(random_images()).tolist()


def test_classes_that_differ_in_capitals_or_blanks_alone_are_pointed_out() -> None:
    model = train_model("may")
    with pytest.warns(UserWarning, match="'May A' and 'maya' are learned as different classes; if they are the same"):
        model.learn((random_images(1), ["May A", "other"] * 12), task="june")
