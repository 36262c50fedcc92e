"""Methods that replay samples: loss and gradient of a step equal an independent computation in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recollect.rng import Key
from recollect.streams import TaskData
from tests.methods import oracles
from tests.methods.support import (
    NOW,
    PIXELS,
    STREAM,
    UNITS,
    Linear,
    Spy,
    as_net,
    as_pairs,
    both_units,
    check_agrees,
    double_batch,
    fill_memory,
    learner_in_last_task,
    nudge,
    scope_of,
    step,
    stored_samples,
)
from tests.support import make_learner


@both_units
def test_er_loss_and_gradient_equal_the_oracle(units: str) -> None:
    learner = learner_in_last_task("er", memory=6, units=units)
    fill_memory(learner)
    past, _ = stored_samples(learner)
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    scope = scope_of(units)
    check_agrees(
        step(learner, batch), lambda n: oracles.er(n, now, past, scope(6), scope), as_net(learner.state_dict())
    )


@both_units
def test_er_ace_ignores_classes_outside_the_current_task_in_the_incoming_loss(units: str) -> None:
    learner = learner_in_last_task("er-ace", memory=6, units=units)
    fill_memory(learner)
    past, _ = stored_samples(learner)
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    net = as_net(learner.state_dict())
    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    watched = phase.validate(batch).losses["classifier"].item()
    assert watched == pytest.approx(oracles.replayed(net, now, lambda y: UNITS[NOW]), rel=1e-9)
    check_agrees(step(learner, batch), lambda n: oracles.er(n, now, past, UNITS[NOW], scope_of(units)), net)


@both_units
@pytest.mark.parametrize("two_draws", [False, True])
def test_derpp_distils_stored_logits_of_the_units_known_when_stored(two_draws: bool, units: str) -> None:
    options = {"memory": 6, "distill": 0.3, "replay": 0.7, "two_draws": two_draws, "units": units}
    learner = make_learner("derpp", STREAM, backbone=Linear(), **options)
    stored: dict[int, np.ndarray] = {}
    for task in range(3):
        learner.begin_task(STREAM.tasks[task].info)
        learner.double()
        if task == NOW:
            break
        then = as_net(learner.state_dict())
        (phase,) = list(learner.phases(STREAM.tasks[task].info))
        trained = [p.requires_grad_(True) for p in phase.groups["classifier"]]
        phase.step(double_batch(task, 3), Spy(trained, rate=0.5))  # moves the weights after the logits were taken
        held = as_pairs(learner.memory.images, learner.memory.labels)
        for slot in range(3 * task, 3 * task + 3):
            stored[slot] = oracles.logits(then, oracles.features(then, held[slot][0]))
    assert [len(stored[slot]) for slot in range(6)] == [2, 2, 2, 5, 5, 5]
    batch = double_batch(num=4)  # fewer than the memory holds, so that two draws differ
    first, second = (learner.memory.sample(4, batch.rng(draw)).slots.tolist() for draw in ("replay", "second replay"))
    assert set(first) != set(second)
    past, now = as_pairs(learner.memory.images, learner.memory.labels), as_pairs(batch.images, batch.y)
    labels = [past[slot] for slot in (second if two_draws else first)]
    before = as_net(learner.state_dict())
    check_agrees(
        step(learner, batch),
        lambda n: oracles.derpp(n, now, [past[slot] for slot in first], [stored[slot] for slot in first], 0.3, 0.7,
                                scope_of(units), labels),
        before,
    )  # fmt: skip
    assert learner.memory.get_buffer("logits").shape == (6, 7)


@both_units
@pytest.mark.parametrize("conflict", [True, False])
def test_agem_projects_only_when_the_gradient_conflicts(conflict: bool, units: str) -> None:
    learner = learner_in_last_task("agem", memory=4, units=units)
    data = TaskData(STREAM.tasks[0].train, PIXELS, torch.device("cpu"), 16, Key(1))
    learner.end_task(STREAM.tasks[0].info, data)
    past, tasks = stored_samples(learner)
    assert set(tasks) == {0}
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)

    def ce(data: list) -> Any:
        return lambda n: oracles.replayed(n, data, scope_of(units))

    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    trained = {id(p) for p in phase.groups["classifier"]}
    names = tuple(as_net({name: p for name, p in learner.named_parameters() if id(p) in trained}))
    for seed in range(50):  # until the gradients conflict, or do not
        nudge(learner.network, seed)
        net = as_net(learner.state_dict())
        g, r = oracles.gradient(ce(now), net, names), oracles.gradient(ce(past), net, names)
        dot = sum(float((g[n] * r[n]).sum()) for n in names)
        if (dot < -1e-3) if conflict else (dot > 1e-3):
            break
    assert (dot < 0) == conflict
    loss, found = step(learner, batch)
    assert set(found) == set(names)
    if conflict:
        norm = sum(float((r[n] ** 2).sum()) for n in names)
        g = {n: g[n] - dot / norm * r[n] for n in names}
    assert loss == pytest.approx(ce(now)(net), rel=1e-9)
    assert all(np.allclose(found[n], g[n], atol=2e-7) for n in names)
    assert sum(float((found[n] * r[n]).sum()) for n in names) >= -1e-9
