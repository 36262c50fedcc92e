"""Both evaluations and drift against naive computations."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.support import make_learner, make_stream, teach

from recollect.engine import Runtime
from recollect.engine.evaluation import evaluate, measure_drift, original_features
from recollect.methods import methods
from recollect.streams import Stream

NAMES = sorted(methods())


@pytest.mark.parametrize("name", NAMES)
def test_both_evaluations_equal_an_evaluation_image_by_image(name: str) -> None:
    stream = make_stream((2, 3, 2))
    learner = make_learner(name, stream, epochs=2)
    record = teach(learner, stream).record
    learner.eval()
    for j, task in enumerate(stream.tasks):
        til = cil = 0
        first = sum(t.info.num_classes for t in stream.tasks[:j])
        for i in range(len(task.test)):
            image, label = task.test.take(torch.tensor([i]))
            with torch.no_grad():
                scores = learner.scores(stream.pixels.normalise(image))
            own = scores.til[0, first : first + task.info.num_classes].tolist()
            til += own.index(max(own)) == int(label) - first
            everything = scores.cil[0].tolist()
            cil += everything.index(max(everything)) == int(label)
        assert record.matrices["til"][-1][j] == pytest.approx(100 * til / len(task.test))
        assert record.matrices["cil"][-1][j] == pytest.approx(100 * cil / len(task.test))


@pytest.mark.parametrize("name", ["er", "rfe", "rfe-b"])
def test_many_small_tasks_are_evaluated_in_full_batches_by_one_reader(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many batches as the images of all tasks fill, and the same accuracies as task by task."""
    stream = make_stream((2, 3, 2, 2, 2, 3), per_class=25)
    learner = make_learner(name, stream, epochs=2, fixed_heads=(2, 3, 2, 2, 2, 3))
    runtime, batches, num_readers = Runtime.choose("cpu"), list[int](), 0
    teach(learner, Stream(stream.name, stream.tasks[:4], stream.pixels, stream.image_shape))
    original = learner.reader

    def counting(*args: Any, **options: Any) -> Any:
        nonlocal num_readers
        num_readers += 1
        read = original(*args, **options)

        def counted(x: torch.Tensor) -> Any:
            batches.append(len(x))
            return read(x)

        return counted

    monkeypatch.setattr(learner, "reader", counting)
    monkeypatch.setattr("recollect.streams.batch.reading_batch_size", lambda *_: 100)
    tasks = [stream.tasks[j] for j in (5, 0, 1, 2, 3, 4)]
    empty = dataclasses.replace(stream.tasks[1].test, indices=torch.zeros(0).long(), labels=torch.zeros(0).long())
    tasks[2] = dataclasses.replace(tasks[2], test=empty)
    together = evaluate(learner, tasks, "test", stream.pixels, runtime)
    assert (batches, num_readers) == ([100, 100, 75], 1)
    alone = [evaluate(learner, [task], "test", stream.pixels, runtime) for task in tasks]
    assert together == {key: [each[key][0] for each in alone] for key in together}
    assert [accuracy is None for accuracy in together["cil"]] == [True, False, True, False, False, True]
    assert any(accuracy != together["til"][0] for accuracy in together["til"])


def test_drift_equals_that_of_features_computed_directly() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe", stream, alpha=0.0, epochs=3)
    runtime = Runtime.choose("cpu")
    teach(learner, Stream(stream.name, stream.tasks[:1], stream.pixels, stream.image_shape))
    original = original_features(learner, stream.tasks[0], stream.pixels, runtime)
    learner = make_learner("rfe", stream, alpha=0.0, epochs=3)
    record = teach(learner, stream, drift=True).record
    learner.eval()
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(len(stream.tasks[0].test)))[0])
    with torch.no_grad():
        now, back = learner.network.backbone(x), learner.rfe.rewind(x, learner.network.backbone(x), to=0)
    assert record.drifted[1][0] == pytest.approx(float((now - original).square().mean().sqrt()), rel=1e-4)
    assert record.rectified[1][0] == pytest.approx(float((back - original).square().mean().sqrt()), rel=1e-4)
    assert record.drifted[0] == record.rectified[0] == [None, None]
    other = finetune_with(learner.network.backbone)
    drift = measure_drift(other, stream.tasks[0], original, stream.pixels, runtime)
    assert (drift.drifted, drift.rectified) == (pytest.approx(record.drifted[1][0], rel=1e-4), None)


def finetune_with(backbone: Any) -> Any:
    """A learner without a chain that has begun two tasks."""
    other = make_learner("finetune", make_stream((2, 2)), backbone=backbone)
    for task in make_stream((2, 2)).tasks:
        other.begin_task(task.info)
    return other


def test_validation_figures_come_from_validation_images(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream((2, 2), per_class=20)
    asked: list[tuple[str, Any]] = []

    def spying(learner: Any, tasks: Any, part: Any, *rest: Any) -> Any:
        asked.append((part, evaluate(learner, tasks, part, *rest)))
        return asked[-1][1]

    monkeypatch.setattr("recollect.engine.loop.evaluate", spying)
    record = teach(make_learner("finetune", stream), stream).record
    assert [part for part, _ in asked] == ["test", "test", "validation"]
    assert record.validation == {name: pytest.approx(sum(asked[-1][1][name]) / 2) for name in ("til", "cil")}
    empty = dataclasses.replace(stream.tasks[0], test=dataclasses.replace(stream.tasks[0].test, indices=torch.zeros(0)))
    found = evaluate(
        make_learner_begun("finetune", stream), [empty], "validation", stream.pixels, Runtime.choose("cpu")
    )
    assert found["til"][0] is not None  # the test split was not looked at


def make_learner_begun(name: str, stream: Stream) -> Any:
    learner = make_learner(name, stream)
    for task in stream.tasks:
        learner.begin_task(task.info)
    return learner


def test_forward_transfer_counts_from_the_accuracy_before_any_training() -> None:
    stream = make_stream((2, 3))
    learner = make_learner("finetune", stream, fixed_heads=(2, 3))
    runtime = Runtime.choose("cpu")
    untrained = evaluate(learner, stream.tasks, "test", stream.pixels, runtime)["til"]
    record = teach(learner, stream).record
    assert record.at_start["til"] == untrained
    assert any(accuracy > 0 for accuracy in untrained)


def test_joint_pads_its_drift_like_its_accuracies() -> None:
    stream = make_stream((2, 2, 2))
    record = teach(make_learner("joint", stream), stream, drift=True).record
    assert [len(row) for row in record.drifted] == [3, 3, 3]
    assert record.drifted[:2] == [[None] * 3] * 2
