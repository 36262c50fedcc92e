"""RFE warns of a retrospector that was trained too little, and changes nothing by looking."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import pytest
import torch

from recollect.methods import _rfe_warnings, rfe
from recollect.streams import Batch, Stream, TaskData
from tests.support import make_learner, make_stream, mse, teach


def caught_by_training(stream: Stream, **options: object) -> tuple[list[str], dict[str, torch.Tensor]]:
    learner = make_learner("rfe", stream, epochs=2, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        teach(learner, stream)
    messages = [str(warning.message) for warning in caught if "the retrospector of task" in str(warning.message)]
    return messages, learner.state_dict()


def test_a_retrospector_that_does_harm_is_reported_with_both_errors_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = make_stream()
    errors: list[tuple[float, float]] = []

    def compute_naively(config, learner_rfe, network, task, data):  # type: ignore[no-untyped-def]
        if task.index:
            x = torch.cat([batch.x for batch in data.batches()])
            f, then = network.backbone(x), learner_rfe.anchor.module(x)
            estimate = learner_rfe.chain.hop(0, f, x)
            errors.append((float(mse(estimate, then)), float(mse(f, then))))
        original(config, learner_rfe, network, task, data)

    original = rfe.warn_about_retrospector
    monkeypatch.setattr(rfe, "warn_about_retrospector", compute_naively)
    untrained, state = caught_by_training(stream, retrospect_epochs=1, retrospect_learning_rate=0.5)
    trained, _ = caught_by_training(stream, retrospect_epochs=6, retrospect_learning_rate=0.02, alpha=0.0)
    (message,), ((with_it, without_it), (after, before)) = untrained, errors
    assert trained == []
    assert after < before
    numbers = re.search(r"task 2 leaves .* .mean squared error (\S+), without it (\S+).; use more (.*)", message)
    assert numbers is not None
    assert [float(number) for number in numbers.groups()[:2]] == pytest.approx([with_it, without_it], rel=1e-2)
    assert with_it > without_it
    assert numbers[3] == "retrospect_epochs or another retrospect_learning_rate"

    monkeypatch.setattr(rfe, "warn_about_retrospector", lambda *_: None)
    _, same = caught_by_training(stream, retrospect_epochs=1, retrospect_learning_rate=0.5)
    assert all(torch.equal(state[name], same[name]) for name in state)


def test_one_batch_of_images_from_all_classes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rfe_warnings, "MAX_IMAGES", 4)
    positions: list[list[int]] = []
    original = TaskData.batches

    def record(data: TaskData, chosen: torch.Tensor | None = None) -> Iterator[Batch]:
        positions.extend([] if chosen is None else [chosen.tolist()])
        return original(data, chosen)

    monkeypatch.setattr(TaskData, "batches", record)
    stream = make_stream((2, 4))
    caught_by_training(stream)
    assert len(positions) == 1
    assert stream.tasks[1].train.labels[positions[0]].unique().tolist() == [2, 3, 4, 5]


def test_an_error_that_does_not_matter_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream((2, 1))  # the softmax of one class is always 1, so nothing moves
    options = {"retrospect_epochs": 60, "retrospect_learning_rate": 0.01, "alpha": 1.0}
    assert caught_by_training(stream, **options)[0] == []
    monkeypatch.setattr("recollect.core.rfe.MIN_HARM", 0.0)
    assert len(caught_by_training(stream, **options)[0]) == 1


@pytest.mark.parametrize("identity", ["average", "class-means"])
def test_rules_that_favour_small_tasks_are_warned_about_where_a_task_is_learned(identity: str) -> None:
    stream = make_stream((2, 3))
    learner = make_learner("rfe", stream, identity=identity)
    for task in stream.tasks:  # as a learner is restored: warnings would be errors here
        learner.begin_task(task.info)
    with pytest.warns(UserWarning, match=f"identity='{identity}' favours tasks of few classes, and task sizes differ"):
        list(learner.phases(stream.tasks[1].info))
