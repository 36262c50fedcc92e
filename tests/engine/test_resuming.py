"""An interrupted run resumes to the same bits."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import Recorder, StopAt, StopError, make_learner, make_stream, teach
from torch import nn

from recollect.methods import Schedule
from recollect.nets import as_backbone
from recollect.nets.resnet import ResNet18
from recollect.storage import seal


@pytest.mark.parametrize("name", ["finetune", "tamil", "rfe-b"])
def test_resuming_gives_the_same_drift_and_bits_also_from_the_end_of_a_phase(name: str, tmp_path: Path) -> None:
    """The conformance suite resumes every method from the middle of a phase, without drift."""
    stream = make_stream((2, 2, 2))
    whole = make_learner(name, stream)
    record = teach(whole, stream, drift=True).record
    total = record.num_images
    for share, seconds in ((0.5, 0.0), (0.7, 300.0)):  # saved after every step, or at ends only
        folder = tmp_path / str(share)
        often = {"checkpoints": folder, "checkpoint_seconds": seconds, "drift": True}
        with pytest.raises(StopError):
            teach(make_learner(name, stream), stream, observer=StopAt(int(share * total)), **often)
        learner = make_learner(name, stream)
        found = teach(learner, stream, checkpoints=folder, drift=True).record
        assert found.matrices == record.matrices
        assert found.drifted == record.drifted
        assert found.rectified == record.rectified
        state = learner.state_dict()
        assert all(torch.equal(tensor, state[key]) for key, tensor in whole.state_dict().items())


@pytest.mark.parametrize("name", ["finetune", "derpp", "cls-er", "rfe", "rfe-b"])
def test_resuming_in_mixed_precision_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    """Layers of more than one channel and pixel, so that what is laid out channels last in memory would show."""
    stream = make_stream((2, 2))
    whole, learner = (make_learner(name, stream, epochs=2, backbone=ResNet18(3, 2)) for _ in range(2))
    learner.load_state_dict(whole.state_dict())
    cut = copy.deepcopy(learner)
    record = teach(whole, stream, precision="bf16").record
    options = {"precision": "bf16", "checkpoints": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(StopError):
        teach(cut, stream, observer=StopAt(int(0.65 * record.num_images)), **options)
    assert "phase-0" in max(path.name for path in tmp_path.iterdir())
    assert teach(learner, stream, **options).record.matrices == record.matrices
    state = learner.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in whole.state_dict().items())


def test_a_cosine_schedule_rises_and_falls_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    stream, recorder = make_stream((2, 2)), Recorder()
    whole = make_learner("finetune", stream, epochs=5)
    record = teach(whole, stream, schedule="cosine", observer=recorder).record
    rates = [fields["learning_rate"]["classifier"] for kind, fields in recorder.events if kind == "epoch"]
    first, second = rates[:5], rates[5:]
    assert first == second == sorted(first, reverse=True)  # each phase begins again; the rise is within an epoch
    assert first[0] < 1e-2
    assert 0 < first[-1] < 1e-3
    options: Any = {"checkpoints": tmp_path, "checkpoint_seconds": 0.0, "schedule": "cosine"}
    stop = StopAt(int(0.65 * record.num_images))
    with pytest.raises(StopError):
        teach(make_learner("finetune", stream, epochs=5), stream, observer=stop, **options)
    learner = make_learner("finetune", stream, epochs=5)
    teach(learner, stream, **options)
    state = learner.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in whole.state_dict().items())


def test_a_phase_that_ends_early_has_its_best_weights_also_when_resumed(tmp_path: Path) -> None:
    stream = make_stream((2,), per_class=20)

    def learner_of(epochs: int, patience: int) -> Any:
        learner = make_learner("finetune", stream, epochs=epochs)
        learner.setup = dataclasses.replace(learner.setup, schedule=Schedule(epochs, 0.05, patience))
        return learner

    recorder, early, cut = Recorder(), learner_of(30, 2), learner_of(30, 2)
    teach(early, stream, observer=recorder)
    losses = [fields["validation"]["classifier"] for kind, fields in recorder.events if kind == "epoch"]
    best = losses.index(min(losses))
    assert best == len(losses) - 3 < 27
    short = learner_of(best + 1, 0)
    teach(short, stream)
    num_images = len(losses) * len(stream.tasks[0].train)
    with pytest.raises(StopError):
        teach(cut, stream, observer=StopAt(num_images - 20), checkpoints=tmp_path, checkpoint_seconds=0.0)
    cut = learner_of(30, 2)
    teach(cut, stream, checkpoints=tmp_path)
    for found in (early, cut):
        state = found.state_dict()
        assert all(torch.equal(tensor, state[key]) for key, tensor in short.state_dict().items())


def test_dropout_of_a_users_backbone_repeats_to_the_bit_and_resumes(tmp_path: Path) -> None:
    stream = make_stream((2, 2))

    def fresh() -> Any:
        torch.manual_seed(0)
        own = nn.Sequential(nn.Flatten(), nn.Linear(768, 10), nn.Dropout(0.5))
        return make_learner("er", stream, backbone=as_backbone(own, stream.image_shape), epochs=2)

    whole = fresh()
    teach(whole, stream)
    with pytest.raises(StopError):
        teach(fresh(), stream, checkpoints=tmp_path, observer=StopAt(40))
    torch.randn(11)
    again = fresh()
    teach(again, stream, checkpoints=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))


def test_resuming_in_another_environment_is_reported(tmp_path: Path) -> None:
    stream = make_stream((2, 2))
    teach(make_learner("finetune", stream), stream, checkpoints=tmp_path)
    path = sorted(tmp_path.glob("task-*"))[-1] / "state.json"
    state = json.loads(path.read_text())
    state["state"]["record"]["environment"]["threads"] = 77
    del state["check"]
    path.write_text(json.dumps(seal(state, "check")))
    recorder = Recorder()
    with pytest.warns(UserWarning, match="another environment, so not to the same bits: threads was 77 and is"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, observer=recorder)
    (resumed,) = [fields for kind, fields in recorder.events if kind == "resumed"]
    assert list(resumed["changed"]) == ["threads"]


def test_a_phase_that_ended_by_its_time_is_not_trained_again_when_resumed(tmp_path: Path) -> None:
    stream = make_stream((2,))
    num_images = len(stream.tasks[0].train)

    def limited() -> Any:
        learner = make_learner("rfe", stream, epochs=9, retrospect_epochs=1)
        schedule = dataclasses.replace(learner.setup.schedule, seconds=1e-9)
        learner.setup = dataclasses.replace(learner.setup, schedule=schedule)
        return learner

    with pytest.raises(StopError):  # after one epoch of the first phase, in the second
        teach(limited(), stream, observer=StopAt(num_images + 1), checkpoints=tmp_path)
    recorder = Recorder()
    teach(limited(), stream, observer=recorder, checkpoints=tmp_path)
    assert [fields["phase"] for kind, fields in recorder.events if kind == "epoch"] == ["task 1 · retrospect"]
