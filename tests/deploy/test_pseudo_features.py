"""What is told of earlier tasks without their images: how accurate the model is on them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from recollect import ContinualClassifier
from recollect.deploy import ModelStore, pseudo_features
from recollect.deploy.editing import merge_classes
from tests.deploy.support import make_classifier

TASKS = ("01", "23", "45", "67")


def some_digits(classes: str, *, test: bool = False, prefix: str = "") -> tuple[np.ndarray, list[str]]:
    data = load_digits()
    rows = np.isin(data.target.astype(str), list(classes)) & ((np.arange(len(data.target)) % 5 == 0) == test)
    return (data.images[rows] * 15.9).astype(np.uint8), [f"{prefix}{label}" for label in data.target[rows]]


@pytest.fixture(scope="module")
def model() -> ContinualClassifier:
    model = make_classifier(epochs=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pseudo_features, "MIN_IMAGES", 10)
        for classes in TASKS:
            model.learn(some_digits(classes), task=classes)
    return model


def test_accuracies_of_earlier_tasks_are_estimated_without_their_images(model: ContinualClassifier) -> None:
    *earlier, newest = model.tasks_
    assert newest.now is None
    for task in earlier:
        assert task.now is not None
        x, y = some_digits(task.name, test=True)
        assert task.now.unknown == pytest.approx(100 * model.score(x, y), abs=6)
        assert task.now.known == pytest.approx(100 * model.score(x, y, task=task.name), abs=6)
        assert task.now.unknown <= task.now.known


def test_too_few_validation_images_estimate_nothing() -> None:
    model = make_classifier(epochs=4).learn(some_digits("01"), task="01").learn(some_digits("23"), task="23")
    assert sum(model.tasks_[1].images.values()) * 0.15 < pseudo_features.MIN_IMAGES
    assert model.tasks_[0].now is None


def test_an_earlier_task_that_a_new_one_is_taken_for_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second task has the first one's digits by other names: nobody can tell them apart."""
    monkeypatch.setattr(pseudo_features, "MIN_IMAGES", 10)
    model = make_classifier(epochs=4).learn(some_digits("01"), task="may")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(some_digits("01", prefix="again-"), task="june")
    messages = [str(warning.message) for warning in caught]
    may = model.tasks_[0].now
    assert may is not None
    assert may.unknown < 75 < may.known
    assert any(f"after 'june', images of 'may' ({may.unknown:.0f} %" in message for message in messages)
    assert any("validation images of 'june' are classified" in message for message in messages)


def test_forgetting_a_class_takes_back_what_was_estimated_with_it(model: ContinualClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    store = ModelStore(tmp_path / "model")
    store.forget(["3"])
    _, after = store.load_current()
    assert [task.now for task in after.tasks] == [None] * len(TASKS)


@pytest.mark.filterwarnings("ignore:too few images for", "ignore:fewer than 10 images", "ignore:no validation images")
def test_estimates_from_before_a_task_or_a_merge_are_not_kept(model: ContinualClassifier) -> None:
    merged = merge_classes(model.model, "small", ["0", "2"])
    assert all(task.now is None for task in merged.tasks)
    later = ContinualClassifier.of(model.model, device="cpu")
    assert any(task.now for task in later.tasks_)
    x, y = some_digits("89")
    few = [y.index(label) for label in ("8", "9")] * 3  # no image is held out, so nothing is estimated
    later.learn((x[few], [y[row] for row in few]), task="89")
    assert all(task.now is None for task in later.tasks_)
