"""The figures that a model records are those measured on its validation images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from recollect import ContinualClassifier
from recollect.cli.rendering.model import print_estimate
from recollect.core.gaussian_rules import Anchored
from recollect.core.identity import Rule
from recollect.deploy.calibration import fit_temperature
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.inspection import measure_shift
from recollect.deploy.stages import LearnPlan, Stages
from recollect.errors import UserError
from tests.deploy.support import (
    SIZE,
    digits,
    make_classifier,
    random_images,
    train_model,
    validation_rows,
)

Months = tuple[ContinualClassifier, ContinualClassifier]


def validation_images(task: str, number: int) -> tuple[torch.Tensor, list[str]]:
    data = read_labelled(digits(task), SIZE)
    rows = validation_rows(data.labels, number)
    return data.images[rows], [data.class_names[label] for label in data.labels[rows].tolist()]


@pytest.fixture(scope="module")
def measured() -> ContinualClassifier:
    """A classifier as it was when it was measured: its validation images are not counted in the class statistics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Anchored, "add", Rule.add)
        return make_classifier(epochs=4).learn(digits("may"), task="may").learn(digits("june"), task="june")


def test_validation_images_are_counted_once_they_have_been_measured(months: Months) -> None:
    _, june = months
    numbers = [number for task in june.tasks_ for number in task.images.values()]
    for space in ("anchor", "today.discriminant"):
        assert june.model.tensors[f"identity.rule.{space}.statistics.counts"].tolist() == numbers


def test_drift_is_the_rmse_between_consecutive_models(months: Months) -> None:
    may, june = months
    x, _ = validation_images("june", 1)
    before = may.features(x)
    drifted = np.sqrt(np.square(june.features(x) - before).mean())
    rectified = np.sqrt(np.square(june.features(x, as_of="may") - before).mean())
    task = june.tasks_[-1]
    assert (task.drifted, task.rectified) == pytest.approx((drifted, rectified), rel=1e-4)
    assert may.tasks_[0].drifted is None


def test_accuracies_and_temperatures_come_from_validation_images(measured: ContinualClassifier) -> None:
    june = measured
    x, y = validation_images("june", 1)
    task = june.tasks_[-1]
    assert task.accuracy == pytest.approx(100 * june.score(x, y, task="june"))
    assert task.across == pytest.approx(100 * june.score(x, y))
    labels = torch.tensor([("2", "3").index(name) for name in y])
    outputs = june.reader.outputs(x)
    assert task.temperature == pytest.approx(fit_temperature(outputs.within[:, 2:], labels))
    assert {task.temperature, june.model.temperature} != {1.0}
    x, y = validation_images("may", 0)
    may = make_classifier(epochs=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Anchored, "add", Rule.add)
        may.learn(digits("may"), task="may")
    alone = may.reader.outputs(x).across  # a single task has no others to draw
    assert may.model.temperature == pytest.approx(
        fit_temperature(alone, torch.tensor([("0", "1").index(n) for n in y]))
    )


def test_shift_separates_changed_images_from_unchanged_ones(months: Months, measured: ContinualClassifier) -> None:
    _, june = months
    x, other, validation = digits("june", test=True)[0], digits("may", test=True)[0], validation_images("june", 1)[0]
    own, inverted, unlike = (measure_shift(june, images) for images in (x, 255 - x, other))
    assert own.shift < 2 * own.by_chance
    assert min(inverted.shift, unlike.shift) > 3 * own.by_chance
    usual, features = june.features(validation), june.features(x)
    varies = usual.std(0) > 0
    difference = (features.mean(0) - usual.mean(0))[varies] / usual.std(0)[varies]
    expected = np.sqrt(np.square(difference).mean())
    assert own.shift == pytest.approx(expected, rel=1e-3)
    assert own.by_chance == pytest.approx((1 / len(x) + 1 / len(validation)) ** 0.5)
    assert (own.task, own.sure) == ("june", pytest.approx(float(june.predict_proba(x).max(axis=1).mean())))
    usual = measured.predict_proba(validation).max(axis=1).mean()
    assert measure_shift(measured, x).usual_sure == pytest.approx(float(usual), rel=1e-4)


@pytest.mark.filterwarnings("ignore:fewer than 10 images")
def test_shift_needs_at_least_two_validation_images() -> None:
    model = train_model("may").learn((random_images(3, 6), ["cow"] * 6), task="june")
    with pytest.raises(UserError, match="'june' was learned with only one validation image"):
        measure_shift(model, random_images())


def test_predictions_within_a_task_rank_classes_as_over_all(months: Months) -> None:
    may, june = months
    x, _ = digits("may", test=True)
    assert may.predict(x, task="may").tolist() == may.predict(x).tolist()  # the only task
    over_all = june.reader.outputs(read_images(x, SIZE)).across[:, :2]
    assert june.predict(x, task="may").tolist() == june.classes_[over_all.argmax(1)].tolist()


def test_fit_temperature_recovers_a_known_temperature() -> None:
    """Labels are drawn from softmax(z), and the logits given are 3 z."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 5, generator=generator) * 2
    labels = torch.multinomial(z.softmax(1), 1, generator=generator)[:, 0]
    assert fit_temperature(3 * z, labels) == pytest.approx(3.0, rel=0.1)
    confident = torch.eye(2)[torch.arange(6) % 2] * 5
    assert fit_temperature(confident, torch.arange(6) % 2) > 1.0  # six images without a mistake prove little
    assert fit_temperature(z[:0], labels[:0]) == 1.0


def test_the_estimated_time_is_seconds_times_images_times_epochs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recollect.cli.rendering.model.seconds_an_image", lambda *_: 0.5)
    settings = make_classifier(epochs=10).settings
    cases: list[tuple[Any, int, int]] = [
        ("gated", 0, 14),  # 120 images, 10 epochs, times 1.4 for both stages
        ("gated", 1, 20),  # and 2.0
        ("affine", 0, 10),  # 102 images: 10 epochs, and 4 views read
        ("affine", 1, 14),  # with the previous network; and 4 views by both, one by the first network
    ]
    for form, num_learned, minutes in cases:
        plan = LearnPlan(replace(settings, form=form), {"cat": 120}, num_learned, Stages(True, True))
        print_estimate(Console(), plan, "cpu", 1)
        assert f"Up to about {minutes} minutes" in capsys.readouterr().out
    print_estimate(Console(), LearnPlan(settings, {"cat": 120}, 0, Stages(True, True, seconds=180.0)), "cpu", 1)
    assert "Up to about 3 minutes" in capsys.readouterr().out
    limited = LearnPlan(replace(settings, form="affine"), {"cat": 120}, 1, Stages(True, True, seconds=180.0))
    print_estimate(Console(), limited, "cpu", 1)
    assert "Up to about 6 minutes" in capsys.readouterr().out  # the limit, and statistics of 102 images in 3 passes
