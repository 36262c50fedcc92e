"""What is told of earlier tasks without their images: how accurate the model is on them, and its temperature."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from recollect import ContinualClassifier
from recollect.deploy import ModelStore
from recollect.deploy.calibration import fit_temperature
from recollect.deploy.data import read_images
from recollect.deploy.editing import merge_classes
from recollect.deploy.pseudo_features import draw_earlier_tasks
from tests.deploy.support import SIZE, make_classifier

TASKS = ("01", "23", "45", "67")


def some_digits(classes: str, *, test: bool = False, prefix: str = "") -> tuple[np.ndarray, list[str]]:
    data = load_digits()
    rows = np.isin(data.target.astype(str), list(classes)) & ((np.arange(len(data.target)) % 5 == 0) == test)
    return (data.images[rows] * 15.9).astype(np.uint8), [f"{prefix}{label}" for label in data.target[rows]]


@pytest.fixture(scope="module")
def model() -> ContinualClassifier:
    model = make_classifier(epochs=4)
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


def test_the_first_task_tells_no_width_and_later_ones_do(model: ContinualClassifier) -> None:
    first, *later = model.tasks_
    assert first.width is None
    assert all(task.width is not None and 1 < task.width < 4 for task in later)  # of new images, not of seen ones


def test_calibration_serves_images_of_earlier_tasks_as_well(model: ContinualClassifier) -> None:
    """The temperature of no test image of any task, against the one that all of them together would choose."""
    images, names = zip(*(some_digits(classes, test=True) for classes in TASKS), strict=True)
    labels = torch.tensor([model.classes_.tolist().index(name) for part in names for name in part])
    logs = model.reader.outputs(read_images(np.concatenate(images), SIZE)).across

    def loss(temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logs / temperature, labels))

    assert loss(model.model.temperature) < 1.25 * loss(fit_temperature(logs, labels))


def test_an_earlier_task_that_a_new_one_is_taken_for_is_warned_about(tmp_path: Path) -> None:
    """The second task has the first one's digits by other names: nobody can tell them apart."""
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


def test_widths_of_before_the_first_adaptation_do_not_count_after_it(model: ContinualClassifier) -> None:
    tasks = [replace(task, adapted=index > 1) for index, task in enumerate(model.tasks_)]
    wide = [replace(task, width=100.0) if not task.adapted else task for task in tasks]
    estimates = []
    for some in (tasks, wide):
        drawn = draw_earlier_tasks(replace(model.model, tasks=tuple(some)), model.reader)
        assert drawn is not None
        estimates.append(drawn.accuracies)
    assert estimates[0] == estimates[1]
