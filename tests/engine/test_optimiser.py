"""One optimiser step, plateaus, early stopping and non-finite losses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import Recorder, make_learner, make_stream, teach
from torch import nn

from recollect.engine import Engine, Runtime, Training
from recollect.engine.update import NonFiniteLossError, Optimiser, Plateau
from recollect.methods import Phase, Schedule, Validation
from recollect.streams import Batch


def phase_of(groups: dict[str, list[nn.Parameter]], rate: float = 1.0) -> Phase:
    return Phase("p", groups, lambda *_: None, lambda _: Validation({}), Schedule(1, rate), [])


def test_each_group_has_its_own_plateau() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    update = Optimiser(nn.ParameterList([a, b]), phase_of({"a": [a], "b": [b]}), Plateau(), 1, torch.device("cpu"))
    losses = [
        (5.0, 5.0),
        (4.0, 5.0),
        (3.0, 5.0),
        (2.0, 5.0),
        (2.0, 4.0),
        (2.0, 4.1),
        (2.0, 4.1),
        (2.0, 4.1),
        (2.0, 3.0),
    ]
    rates = [update.end_epoch({"a": x, "b": y}) for x, y in losses]
    # a stalls at epochs 5, 6, 7 and again 8, 9; b at 2, 3, 4, then improves, then stalls at 6, 7, 8
    assert [r["a"] for r in rates] == pytest.approx([1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.1])
    assert [r["b"] for r in rates] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_an_update_is_adam_and_moves_nothing_else() -> None:
    trained, still = nn.Linear(3, 2), nn.Linear(3, 2)
    twin = nn.Linear(3, 2)
    twin.load_state_dict(trained.state_dict())
    before = still.weight.clone()
    update = Optimiser(
        nn.ModuleList([trained, still]),
        phase_of({"g": list(trained.parameters())}, 0.1),
        Plateau(),
        5,
        torch.device("cpu"),
    )
    m = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    v = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for step in range(1, 6):
        x = torch.randn(4, 3)
        update((trained(x) + still(x)).square().mean())
        loss = (twin(x) + still(x).detach()).square().mean()
        grads = dict(zip(m, torch.autograd.grad(loss, list(twin.parameters())), strict=True))
        with torch.no_grad():
            for name, p in twin.named_parameters():
                m[name] = 0.9 * m[name] + 0.1 * grads[name]
                v[name] = 0.999 * v[name] + 0.001 * grads[name] ** 2
                p -= 0.1 * (m[name] / (1 - 0.9**step)) / ((v[name] / (1 - 0.999**step)).sqrt() + 1e-8)
    assert torch.allclose(trained.weight, twin.weight, atol=1e-5)
    assert torch.equal(still.weight, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_loss_stops_the_run_and_names_the_step_and_the_checkpoint(
    bad: float, tmp_path: Path, monkeypatch
) -> None:
    stream = make_stream((2, 2))
    learner = make_learner("finetune", stream, epochs=2)
    original, calls = learner.step, []

    def step(batch: Batch, update: Any) -> None:
        calls.append(0)
        factor = bad if len(calls) == 6 + 5 else 1  # 3 steps an epoch: task 2, epoch 2, step 2
        original(batch, lambda loss: update(loss * factor))

    monkeypatch.setattr(learner, "step", step)
    with pytest.raises(NonFiniteLossError, match=rf"became {bad} at step 2 of task 2 · fit, epoch 2; .*task-001"):
        teach(learner, stream, checkpoints=tmp_path)


def test_without_validation_images_the_schedule_follows_the_training_loss() -> None:
    stream = make_stream((2,), per_class=3)
    assert len(stream.tasks[0].validation) == 0
    recorder = Recorder()
    with pytest.warns(UserWarning, match="no validation images: the learning rate watches the training loss"):
        teach(make_learner("rfe", stream, epochs=2), stream, observer=recorder)
    epochs = [fields for kind, fields in recorder.events if kind == "epoch"]
    assert epochs
    assert all(set(e["validation"].values()) == {e["loss"]} for e in epochs)
    assert recorder.images == recorder.announced
    json.dumps(epochs)


def test_the_plateau_watches_validation_and_takes_patience_and_factor() -> None:
    """A validation loss that cannot fall lowers the rate however well training goes, as often as patience says."""
    stream = make_stream((2,), per_class=20)
    learner = make_learner("finetune", stream, epochs=6)
    original = learner.phases
    worse = iter(range(100))

    def rising(task: Any) -> Any:
        for phase in original(task):
            yield dataclasses.replace(
                phase, validate=lambda _: Validation({"classifier": torch.tensor(float(next(worse)))})
            )

    learner.phases = rising  # type: ignore[method-assign]
    recorder = Recorder()
    training = Training(epochs=6, learning_rate=1e-2, batch_size=8, patience=2, factor=0.5)
    Engine(learner, stream, training, Runtime.choose("cpu"), 0, observer=recorder).run()
    epochs = [fields for kind, fields in recorder.events if kind == "epoch"]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    rates = [epoch["learning_rate"]["classifier"] for epoch in epochs]
    assert rates == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])


def test_a_run_with_non_finite_weights_after_its_last_step_fails(tmp_path: Path) -> None:
    stream = make_stream((2, 2), per_class=10)
    training = Training(epochs=1, learning_rate=1e30, batch_size=1000)
    learner = make_learner("finetune", stream, epochs=1)
    learner.setup = dataclasses.replace(learner.setup, schedule=Schedule(1, 1e30))
    with pytest.raises(
        NonFiniteLossError, match="validation loss of the classifier became .* there is no earlier checkpoint"
    ):
        Engine(learner, stream, training, Runtime.choose("cpu"), 0, checkpoints=tmp_path).run()
    assert not list(tmp_path.glob("task-*"))
