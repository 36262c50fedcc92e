"""Methods with moving averages: the loss equals an independent computation in NumPy, and the averages move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recollect.rng import Key
from recollect.streams import Batch
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
def test_er_mkd_distils_from_the_teacher_and_predicts_with_the_mean_of_both_weights(units: str) -> None:
    learner = learner_in_last_task("er-mkd", memory=6, distill=3.0, temperature=2.0, units=units)
    nudge(learner.teacher, 1)
    fill_memory(learner)
    past, _ = stored_samples(learner)
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    net, teacher = as_net(learner.state_dict()), as_net(learner.state_dict(), "teacher.module.")
    with torch.no_grad():
        scores, (features, _) = learner.scores(batch.x).til, learner.features(batch.x)
    mean = {name: (net[name] + teacher[name]) / 2 for name in net}
    for (x, _), row, f in zip(now, scores, features, strict=True):
        assert np.allclose(f.numpy(), oracles.features(mean, x))
        assert np.allclose(row.numpy(), oracles.logits(mean, oracles.features(mean, x)))
    scope = scope_of(units)
    check_agrees(step(learner, batch), lambda n: oracles.er_mkd(n, teacher, now, past, 3.0, 2.0, scope), net)


@both_units
def test_cls_er_distils_from_the_better_average_and_predicts_with_the_stable_one(units: str) -> None:
    learner = learner_in_last_task("cls-er", memory=6, distill=0.3, replay=0.9, units=units)
    nudge(learner.stable, 1)
    nudge(learner.plastic, 2)
    fill_memory(learner)
    past, _ = stored_samples(learner)
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    net = as_net(learner.state_dict())
    stable, plastic = (as_net(learner.state_dict(), f"{which}.module.") for which in ("stable", "plastic"))
    chosen = set()
    for x, y in past:
        s, p = (oracles.log_softmax(oracles.logits(m, oracles.features(m, x)))[y] for m in (stable, plastic))
        chosen.add(bool(s > p))
    assert chosen == {True, False}  # both averages teach something
    with torch.no_grad():
        scores = learner.scores(batch.x)
    for (x, _), row in zip(now, scores.cil, strict=True):
        assert np.allclose(row.numpy(), oracles.logits(stable, oracles.features(stable, x)))
    scope = scope_of(units)
    check_agrees(step(learner, batch), lambda n: oracles.cls_er(n, stable, plastic, now, past, 0.3, 0.9, scope), net)


@both_units
def test_tamil_loss_equals_the_oracle_and_the_nearest_attention_is_chosen(units: str) -> None:
    learner = learner_in_last_task(
        "tamil", memory=6, replay=0.6, distill=0.3, pairwise=0.2, attention_dim=3, units=units
    )
    nudge(learner.teacher, 1)
    fill_memory(learner)
    past, tasks = stored_samples(learner)
    assert set(tasks) == {0, 1}
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)

    def nearest(x: np.ndarray) -> int:
        f = oracles.features(net, x)
        return min(range(3), key=lambda t: float(((oracles.attention(net, t, f) - f) ** 2).sum()))

    for seed in range(300):  # until more than one attention is chosen, on the batch and on replay
        nudge(learner.attentions, seed)
        net, teacher = as_net(learner.state_dict()), as_net(learner.state_dict(), "teacher.module.")
        if min(len({nearest(x) for x, _ in data}) for data in (now, past)) > 1:
            break
    assert min(len({nearest(x) for x, _ in data}) for data in (now, past)) > 1
    with torch.no_grad():
        scores = learner.scores(batch.x)
    for (x, _), til, cil in zip(now, scores.til, scores.cil, strict=True):
        f = oracles.features(net, x)
        choices = [oracles.attention(net, t, f) for t in range(3)]
        own = [oracles.logits(net, choices[t] * f)[list(UNITS[t])] for t in range(3)]
        assert np.allclose(til.numpy(), np.concatenate(own))
        assert np.allclose(cil.numpy(), oracles.logits(net, choices[nearest(x)] * f))
    scope = scope_of(units)
    check_agrees(
        step(learner, batch), lambda n: oracles.tamil(n, teacher, now, past, tasks, 0.6, 0.3, 0.2, net, scope), net
    )


def test_stable_and_plastic_averages_move_independently() -> None:
    """In the method itself: each average moves as often as its own probability says, whatever the other does."""
    learner = learner_in_last_task("cls-er", memory=6, stable_frequency=0.4, plastic_frequency=0.6)
    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    spy = Spy([p.requires_grad_(True) for p in phase.groups["classifier"]])
    batch = double_batch()
    moved = []
    for i in range(800):
        before = int(learner.stable.moves), int(learner.plastic.moves)
        phase.step(Batch(batch.images, batch.x, batch.y, PIXELS, Key(0) / i), spy)
        moved.append([int(learner.stable.moves) - before[0], int(learner.plastic.moves) - before[1]])
    flips = np.array(moved)
    assert np.abs(flips.mean(0) - [0.4, 0.6]).max() < 0.06
    assert abs(np.corrcoef(flips.T)[0, 1]) < 0.12


AVERAGES = [
    ("er-mkd", "teacher", {}),
    ("tamil", "teacher", {"ema_frequency": 1.0}),
    ("cls-er", "stable", {"stable_frequency": 1.0}),
    ("cls-er", "plastic", {"plastic_frequency": 1.0}),
]


@pytest.mark.parametrize(("name", "average", "options"), AVERAGES)
def test_averages_move_towards_the_weights_after_the_step(name: str, average: str, options: dict[str, Any]) -> None:
    learner = learner_in_last_task(name, memory=6, **options)
    nudge(getattr(learner, average), 1)
    fill_memory(learner)
    old, start = as_net(learner.state_dict(), f"{average}.module."), as_net(learner.state_dict())
    step(learner, double_batch(), rate=0.5)
    new, now = as_net(learner.state_dict(), f"{average}.module."), as_net(learner.state_dict())
    assert any(not np.allclose(start[key], now[key]) for key in old)
    for key in (key for key in old if key[0] in "WbVc"):  # d = 1 - 1/2 at the first move
        assert np.allclose(new[key], 0.5 * old[key] + 0.5 * now[key], atol=1e-12), key


def test_averages_move_at_every_step_or_never_by_their_frequency() -> None:
    for frequency, moves in ((0.0, False), (1.0, True)):
        learner = learner_in_last_task("cls-er", stable_frequency=frequency, plastic_frequency=1.0 - frequency)
        before = as_net(learner.state_dict(), "stable.module.")
        nudge(learner.network, 3)
        step(learner, double_batch())
        after = as_net(learner.state_dict(), "stable.module.")
        assert any(not np.array_equal(before[n], after[n]) for n in before) == moves
        assert int(learner.stable.moves) == int(moves)


def test_new_heads_are_copied_into_the_averages() -> None:
    learner = make_learner("cls-er", STREAM, backbone=Linear())
    learner.begin_task(STREAM.tasks[0].info)
    nudge(learner.stable.module.double(), 1)
    old = learner.stable.module.heads[0].weight.clone()
    learner.begin_task(STREAM.tasks[NOW].info)
    assert torch.equal(learner.stable.module.heads[0].weight.to(old.dtype), old.to(torch.float32).to(old.dtype))
    assert torch.equal(learner.stable.module.heads[1].weight, learner.network.heads[1].weight)
