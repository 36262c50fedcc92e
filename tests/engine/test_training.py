"""What phases train on: the order of data, training mode, devices and precision."""

from __future__ import annotations

import dataclasses
import itertools
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support import Recorder, is_trained, make_learner, make_stream, teach
from torch import nn

from recollect.engine import Engine, Observer, Runtime, Training
from recollect.engine.evaluation import evaluate
from recollect.errors import UserError
from recollect.methods import methods
from recollect.nets.resnet import ResNet18
from recollect.streams import Batch, Stream

NAMES = sorted(methods())


def presented(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the stream's batches of the fit phases showed, view by view."""
    stream = make_stream()
    learner = make_learner(name, stream, epochs=2)
    shown: list[bytes] = []
    original = learner.phases

    def spying(task: Any) -> Any:
        for phase in original(task):

            def step(batch: Batch, update: Any, inner: Any = phase.step, spy: bool = phase.name == "fit") -> None:
                if spy:
                    shown.append(batch.x.numpy().tobytes())
                inner(batch, update)

            yield dataclasses.replace(phase, step=step)

    monkeypatch.setattr(learner, "phases", spying)
    teach(learner, stream, seed=seed)
    return shown


def test_all_methods_see_the_same_views_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = presented("finetune", 5, monkeypatch)
    assert len(set(reference)) == len(reference)  # every epoch draws anew
    for name in ("er", "rfe", "rfe-b"):
        assert presented(name, 5, monkeypatch) == reference
    assert presented("finetune", 6, monkeypatch) != reference


def test_a_batch_tells_where_it_is_in_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    for batch_size, expected in ((7, [0.0, 0.5, 1.0]), (20, [1.0])):
        stream, seen = make_stream((2,)), list[float]()  # 18 training images
        learner = make_learner("finetune", stream, epochs=2)
        original = learner.step
        monkeypatch.setattr(learner, "step", lambda b, u, f=original, s=seen: (s.append(b.progress), f(b, u)))
        teach(learner, stream, batch_size=batch_size)
        assert seen == 2 * expected


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    stream = make_stream()
    a, b, c = (make_learner(name, stream, epochs=2) for _ in range(3))
    teach(a, stream, seed=1)
    torch.randn(7)  # other users of torch's global generator do not matter
    teach(b, stream, seed=1)
    teach(c, stream, seed=2)
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    if is_trained(name):
        assert any(not torch.equal(x, y) for x, y in zip(a.state_dict().values(), c.state_dict().values(), strict=True))


def test_convolutions_are_laid_out_channels_last_and_stay_so() -> None:
    stream = make_stream()
    learner = make_learner("rfe", stream, backbone=ResNet18(3, 2))
    teach(learner, stream)
    layers = [m for m in learner.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1 and m.in_channels > 1]
    assert len(layers) > 17
    assert all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in layers)


def test_bf16_training_is_accurate() -> None:
    stream = make_stream((2, 2), per_class=20)
    learner = make_learner("rfe", stream, epochs=6)
    runtime = Runtime.choose("cpu", "bf16")
    Engine(learner, stream, Training(epochs=6, learning_rate=1e-2, batch_size=8), runtime, 0).run()
    found = evaluate(learner, stream.tasks, "test", stream.pixels, runtime)
    assert found["til"][1] is not None
    assert found["til"][1] > 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' is not available"),
        ({"precision": "fp8"}, "precision is"),
        ({"device": "cpu:foo"}, "device 'cpu:foo' is not available"),
        ({"device": "cpu:1"}, "device 'cpu:1' is not available"),
        ({"threads": -1}, "threads must be between"),
    ],
)
def test_unavailable_devices_and_precisions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Runtime.choose(**options)


def test_joint_under_task_units_trains_every_head() -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("joint", stream, units="task")
    for task in stream.tasks:
        learner.begin_task(task.info)
    before = [head.weight.clone() for head in learner.network.heads]
    other = make_learner("joint", stream, units="task")
    teach(other, stream)
    assert all(not torch.equal(old, head.weight) for old, head in zip(before, other.network.heads, strict=True))


def test_only_the_modules_of_a_phase_are_in_training_mode() -> None:
    """While r and h learn, f_t must evaluate: its BatchNorm statistics stay as stage 1 left them."""
    stream = make_stream()
    learner = make_learner("rfe", stream)
    original, seen = learner.phases, []

    def spying(task: Any) -> Any:
        for phase in original(task):

            def step(batch: Batch, update: Any, inner: Any = phase.step, name: str = phase.name) -> None:
                seen.append((name, learner.network.backbone.training))
                inner(batch, update)

            yield dataclasses.replace(phase, step=step)

    learner.phases = spying  # type: ignore[method-assign]
    teach(learner, stream)
    assert set(seen) == {("fit", True), ("retrospect", False)}


def test_a_phase_ends_before_the_epoch_that_would_exceed_its_time(
    tiny: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock is a second after the last; one epoch takes the same number of looks as the others."""
    looks = itertools.count()
    monkeypatch.setattr("recollect.engine.fit.perf_counter", lambda: float(next(looks)))
    recorder = Recorder()
    learner = make_learner("finetune", tiny, epochs=50)
    learner.setup = replace(learner.setup, schedule=replace(learner.setup.schedule, seconds=100.0))
    teach(learner, tiny, observer=recorder)
    epochs = [fields for kind, fields in recorder.events if kind == "epoch"]
    first_task = [fields["seconds"] for fields in epochs if fields["phase"].startswith("task 1")]
    assert 1 < len(first_task) < 50
    assert sum(first_task) <= 100 < sum(first_task) + first_task[-1]
    learner = make_learner("finetune", tiny, epochs=3)
    learner.setup = replace(learner.setup, schedule=replace(learner.setup.schedule, seconds=0.001))
    recorder = Recorder()
    teach(learner, tiny, observer=recorder)
    assert sum(kind == "epoch" for kind, _ in recorder.events) == len(tiny.tasks)


def test_the_time_for_statistics_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream((2, 2))
    learner = make_learner("slda", stream)
    end_task = learner.end_task

    def slowly(*arguments: Any) -> None:
        time.sleep(0.05)
        end_task(*arguments)

    monkeypatch.setattr(learner, "end_task", slowly)
    seconds = teach(learner, stream).record.seconds
    assert 0.1 <= seconds["statistics"] < 5
    assert seconds.keys() == {"statistics", "evaluate"}


def test_reading_many_images_when_a_task_ends_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []

    class Told(Observer):
        def phase(self, title: str, num_images: int) -> None:
            told.append((title, num_images))

        def advance(self, num_images: int) -> None:
            told[-1] = (told[-1][0], told[-1][1] - num_images)

    stream = make_stream()
    teach(make_learner("slda", stream), stream, observer=Told())
    assert told == []
    monkeypatch.setattr("recollect.engine.observer.MIN_TRACKED", 1)
    teach(make_learner("slda", stream), stream, observer=Told())
    assert [title for title, _ in told] == [f"task {i + 1} · reading images" for i in range(len(stream.tasks))]
    assert {left for _, left in told} == {0}  # all were counted
