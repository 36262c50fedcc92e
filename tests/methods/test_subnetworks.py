"""Methods that are told the task: their masks, gradients and outputs equal hand computations; nothing is forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.engine import Observer
from recollect.errors import UserError
from recollect.methods import Learner, methods
from recollect.methods.packnet import FREE
from tests.methods import oracles
from tests.methods.support import NOW, STREAM, UNITS, Spy, as_net, as_pairs, double_batch, learner_in_last_task
from tests.support import make_learner, make_stream, teach


def scores_after_each_task(name: str, **options: Any) -> tuple[Learner[Any], list[Tensor], list[dict[str, Tensor]]]:
    """A learner after a small stream; scores (til) of the same images and the state after each task."""
    stream = make_stream((2, 2, 2), per_class=6)
    learner = make_learner(name, stream, **options)
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(4))[0])
    scores, states = [], []

    class Read(Observer):
        @torch.no_grad()
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "task":
                scores.append(learner.eval().scores(x).til)
                states.append({name: tensor.clone() for name, tensor in learner.state_dict().items()})

    teach(learner, stream, observer=Read())
    return learner, scores, states


def run_step(learner: Learner[Any], number: int = 0, rate: float = 0.0) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of one step of the last task's phase `number`, by the names of the parameters."""
    phases = learner.phases(STREAM.tasks[NOW].info)
    phase = next(phase for index, phase in enumerate(phases) if index == number)
    learner.requires_grad_(False)
    trained = [p.requires_grad_(True) for group in phase.groups.values() for p in group]
    spy = Spy(trained, rate)
    phase.step(double_batch(), spy)
    name_of = {id(p): name for name, p in learner.named_parameters()}
    return spy.loss, {name_of[id(p)]: g.numpy() for p, g in zip(trained, spy.applied, strict=True)}


@pytest.mark.parametrize("name", ["packnet", "pnn"])
def test_later_tasks_do_not_change_a_bit_of_earlier_ones(name: str) -> None:
    _, scores, _ = scores_after_each_task(name)
    assert torch.equal(scores[0], scores[2][:, :2])
    assert torch.equal(scores[1], scores[2][:, :4])
    assert not torch.equal(scores[2][:, :2], scores[2][:, 2:4])


def test_packnet_prunes_the_smallest_free_weights_of_each_layer() -> None:
    learner = learner_in_last_task("packnet", prune=0.6)
    weight = learner.network.backbone.linear.weight
    before = weight.detach().numpy().copy()
    largest_first = np.argsort(-np.abs(before), axis=None)  # 64 weights
    learner.prune(0)
    owner = learner.owners()[0].numpy()
    first = largest_first[: 64 - round(0.6 * 64)]
    assert set(np.flatnonzero(owner == 0)) == set(first)
    assert np.array_equal(weight.detach().numpy(), np.where(owner == 0, before, 0))

    with torch.no_grad():
        weight += torch.from_numpy(np.where(owner == 0, 0, before[::-1]))  # what a second task might learn
    learned = weight.detach().numpy().copy()
    learner.prune(1)
    free = [i for i in np.argsort(-np.abs(learned), axis=None) if i not in set(first)]
    second = free[: len(free) - round(0.6 * len(free))]
    owner = learner.owners()[0].numpy()
    assert set(np.flatnonzero(owner == 1)) == set(second)
    assert set(np.flatnonzero(owner == 0)) == set(first)
    assert (owner == FREE).sum() == 64 - len(first) - len(second)
    assert np.array_equal(weight.detach().numpy(), np.where(owner == FREE, 0, learned))


def test_packnet_trains_free_weights_then_those_it_kept() -> None:
    learner = learner_in_last_task("packnet", prune=0.5)
    learner.prune(0)
    learner.prune(1)
    kept = learner.owners()[0].numpy() != FREE
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)

    def loss(net: oracles.Net) -> float:
        return oracles.replayed(net, now, lambda y: UNITS[NOW])

    for number in (0, 1):  # fit, then retrain, before which the generator prunes
        found_loss, gradients = run_step(learner, number)
        owner, net = learner.owners()[0].numpy(), as_net(learner.state_dict())
        expected = oracles.gradient(loss, net, ("W", "b", f"V{NOW}"))
        trained = owner == NOW if number else ~kept
        assert found_loss == pytest.approx(loss(net), rel=1e-9)
        weight = gradients["network.backbone.linear.weight"]
        assert np.allclose(weight, np.where(trained, expected["W"], 0), atol=2e-8)
        assert np.all(weight[~trained] == 0)
        assert np.abs(weight).max() > 1e-3
        assert np.allclose(gradients["network.backbone.linear.bias"], expected["b"], atol=2e-8)
        assert np.allclose(gradients[f"network.heads.{NOW}.weight"], expected[f"V{NOW}"], atol=2e-8)
    for task in (0, 1):  # an earlier task reads its own weights and those of tasks before it
        masked = {**as_net(learner.state_dict())}
        masked["W"] = masked["W"] * (learner.owners()[0].numpy() <= task)
        masked["b"] = learner.get_buffer(f"own_{task}_0").numpy()
        with torch.no_grad():
            found = learner.subnetwork(batch.x, task).numpy()
        assert np.allclose(found, [oracles.features(masked, x) for x, _ in now])


class TwoLayers(nn.Module):
    """W_1 relu(W_0 x), with a layer that nothing reads."""

    feature_dim, nonnegative = 3, False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(16, 5), nn.Linear(5, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(nn.functional.avg_pool2d(x, 4).flatten(1))))


def test_pnn_connects_each_layer_to_all_earlier_columns() -> None:
    learner = learner_in_last_task("pnn", backbone=TwoLayers(), lateral=0.5)
    weights = {name: tensor.numpy() for name, tensor in learner.state_dict().items()}
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)

    def linear(name: str, h: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ h + weights.get(f"{name}.bias", 0)

    def lateral(name: str, earlier: list[np.ndarray]) -> np.ndarray:
        scaled = [scale * h for scale, h in zip(weights[f"{name}.scales"], earlier, strict=True)]
        return linear(f"{name}.connect", np.maximum(linear(f"{name}.reduce", np.concatenate(scaled)), 0))

    def read(x: np.ndarray) -> list[np.ndarray]:
        hidden, outputs, features = [], [], []
        for k in range(3):
            hidden.append(np.maximum(linear(f"columns.{k}.first", x), 0))
            outputs.append(linear(f"columns.{k}.second", hidden[k]))
            if k:
                outputs[k] = outputs[k] + lateral(f"laterals.{k}.0", hidden[:k])
            features.append(outputs[k] + lateral(f"laterals.{k}.1", outputs[:k]) if k else outputs[k])
        return features

    with torch.no_grad():
        found = [f.numpy() for f in learner.task_features(batch.x)]
    assert weights["laterals.2.0.reduce.weight"].shape == (3, 10)  # half of 5 inputs, rounded up, of two columns
    for row, (x, _) in enumerate(now):
        for k, f in enumerate(read(x)):
            assert np.allclose(found[k][row], f)
    loss, gradients = run_step(learner)
    expected = [oracles.cross_entropy(linear("network.heads.2", read(x)[2]), y - 5, range(2)) for x, y in now]
    assert loss == pytest.approx(oracles.mean(expected), rel=1e-9)
    assert all(name.startswith(("columns.2.", "laterals.2.", "network.heads.2.")) for name in gradients)
    assert len(gradients) == 6 + 2 * 4 + 2


@pytest.mark.parametrize(
    ("name", "option", "value"), [("packnet", "prune", 1.0), ("packnet", "retrain", -0.5), ("pnn", "lateral", -1.0)]
)
def test_options_out_of_range_are_refused(name: str, option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{option}.*{value}"):
        type(methods()[name].config)(**{option: value})
