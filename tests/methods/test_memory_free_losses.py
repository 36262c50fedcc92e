"""Methods without memory: loss, gradient and what they record equal an independent computation in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.rng import Key
from recollect.streams import TaskData
from tests.methods import oracles
from tests.methods.oracles import Net
from tests.methods.support import (
    NOW,
    PIXELS,
    STREAM,
    UNITS,
    Spy,
    as_net,
    as_pairs,
    check_agrees,
    double_batch,
    learner_in_last_task,
    nudge,
    step,
)


def test_lwf_distils_every_old_head() -> None:
    learner = learner_in_last_task("lwf", distill=0.8, temperature=2.0)
    nudge(learner.previous.module, 1)
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    before = as_net(learner.state_dict(), "previous.module.")
    assert "V2" not in before  # the copy was taken before the new head came
    net = as_net(learner.state_dict())
    check_agrees(step(learner, batch), lambda n: oracles.lwf(n, before, now, UNITS[NOW], UNITS[:NOW], 0.8, 2.0), net)


def test_ewc_penalty_and_fisher_information_equal_the_oracle() -> None:
    learner = learner_in_last_task("ewc", penalty=3.0, decay=0.5, fisher_samples=100)
    split = STREAM.tasks[0].train
    data = TaskData(split, PIXELS, torch.device("cpu"), 16, Key(1))
    before = as_net(learner.state_dict())
    for index in (0, 1):
        learner.get_buffer(f"fisher_{index}").fill_(0.2)
    learner.eval()
    learner.end_task(STREAM.tasks[0].info, data)
    pairs = as_pairs(*split.take(torch.arange(len(split))))
    expected = oracles.fisher(before, pairs, UNITS[0])
    fisher = {"W": learner.get_buffer("fisher_0").numpy(), "b": learner.get_buffer("fisher_1").numpy()}
    for name, value in expected.items():
        assert np.allclose(fisher[name], 0.5 * 0.2 + value, atol=1e-7)
    nudge(learner.network, 2)
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    net = as_net(learner.state_dict())
    check_agrees(step(learner, batch), lambda n: oracles.ewc(n, before, fisher, now, UNITS[NOW], 3.0), net)


def test_si_penalty_and_path_importance_equal_the_oracle() -> None:
    learner = learner_in_last_task("si", penalty=2.0, damping=0.1)
    anchor = {"W": learner.get_buffer("anchor_0").numpy().copy(), "b": learner.get_buffer("anchor_1").numpy().copy()}
    importance = {name: np.full_like(value, 0.3) for name, value in anchor.items()}
    for index in (0, 1):
        learner.get_buffer(f"importance_{index}").fill_(0.3)
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    net = as_net(learner.state_dict())
    loss, found = step(learner, batch, rate=0.1)

    def ce(n: Net) -> float:
        return oracles.ewc(n, n, importance, now, UNITS[NOW], 0.0)

    assert loss == pytest.approx(ce(net), rel=1e-9)  # the penalty enters through its gradient
    total = oracles.gradient(lambda n: oracles.si(n, anchor, importance, now, UNITS[NOW], 2.0), net, tuple(found))
    assert all(np.allclose(found[name], total[name], atol=1e-7) for name in found)
    task_gradient = oracles.gradient(ce, net, ("W", "b"))
    after = as_net(learner.state_dict())
    paths = {}
    for index, name in enumerate(("W", "b")):
        paths[name] = -task_gradient[name] * (after[name] - net[name])
        assert np.allclose(learner.get_buffer(f"path_{index}").numpy(), paths[name], atol=1e-8)
    learner.end_task(STREAM.tasks[NOW].info, TaskData(STREAM.tasks[NOW].train, PIXELS, torch.device("cpu"), 16, Key(1)))
    for index, name in enumerate(("W", "b")):
        expected = 0.3 + np.maximum(paths[name], 0) / ((after[name] - anchor[name]) ** 2 + 0.1)
        assert np.allclose(learner.get_buffer(f"importance_{index}").numpy(), expected, atol=1e-8)
        assert not learner.get_buffer(f"path_{index}").any()
        assert np.allclose(learner.get_buffer(f"anchor_{index}").numpy(), after[name])


def test_expansion_trains_each_expert_alone() -> None:
    learner = learner_in_last_task("expansion", auxiliary_dim=4)
    batch = double_batch()
    old = {name: tensor.clone() for name, tensor in learner.experts[0].state_dict().items()}
    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    assert {id(p) for p in phase.groups["expert"]} == {id(p) for p in learner.experts[NOW].parameters()}
    trained = [p.requires_grad_(True) for p in phase.groups["expert"]]
    spy = Spy(trained, rate=0.1)
    extractor, head = learner.experts[NOW]
    f = extractor(batch.x).detach().numpy()
    weight, bias = head.weight.detach().numpy().copy(), head.bias.detach().numpy().copy()
    phase.step(batch, spy)

    def loss(net: Net) -> float:
        rows = zip(f, batch.y.tolist(), strict=True)
        return oracles.mean([oracles.cross_entropy(net["V"] @ row + net["c"], y - 5, range(2)) for row, y in rows])

    net = {"V": weight, "c": bias}
    assert spy.loss == pytest.approx(loss(net), rel=1e-9)
    expected = oracles.gradient(loss, net, ("V", "c"))
    assert np.allclose(spy.applied[-2].numpy(), expected["V"], atol=1e-7)
    assert np.allclose(spy.applied[-1].numpy(), expected["c"], atol=1e-7)
    assert all(torch.equal(old[name], tensor) for name, tensor in learner.experts[0].state_dict().items())
