"""Methods that are told the task: their masks, gradients and outputs equal hand computations; nothing is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.engine import Observer
from recollect.errors import UserError
from recollect.methods import Learner, methods
from recollect.methods._units import find_points, masking, used_inputs
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


def run_step(
    learner: Learner[Any], number: int = 0, rate: float = 0.0, progress: float = 1.0
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of one step of the last task's phase `number`, by the names of the parameters."""
    phases = learner.phases(STREAM.tasks[NOW].info)
    phase = next(phase for index, phase in enumerate(phases) if index == number)
    learner.requires_grad_(False)
    trained = [p.requires_grad_(True) for group in phase.groups.values() for p in group]
    spy = Spy(trained, rate)
    phase.step(replace(double_batch(), progress=progress), spy)
    name_of = {id(p): name for name, p in learner.named_parameters()}
    return spy.loss, {name_of[id(p)]: g.numpy() for p, g in zip(trained, spy.applied, strict=True)}


@pytest.mark.parametrize("name", ["packnet", "pnn", "supsup"])
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


def test_supsup_masks_fixed_weights_by_the_largest_scores() -> None:
    learner = learner_in_last_task("supsup", density=0.3)
    name, batch = "network.backbone.linear.weight", double_batch()
    now = as_pairs(batch.images, batch.y)
    scores = learner.mask_scores[0].detach().numpy()
    mask = np.zeros(64)
    mask[np.argsort(-np.abs(scores), axis=None)[: round(0.3 * 64)]] = 1
    mask = mask.reshape(scores.shape)

    def loss(net: oracles.Net) -> float:
        return oracles.replayed({**net, "W": net["W"] * net["M"]}, now, lambda y: UNITS[NOW])

    net = {**as_net(learner.state_dict()), "M": mask}
    found, gradients = run_step(learner)
    expected = oracles.gradient(loss, net, ("M", f"V{NOW}"))
    assert found == pytest.approx(loss(net), rel=1e-9)
    assert np.allclose(gradients["mask_scores.0"], expected["M"] * np.sign(scores), atol=2e-8)  # zeros of M included
    assert np.allclose(gradients[f"network.heads.{NOW}.weight"], expected[f"V{NOW}"], atol=2e-8)
    assert not gradients["network.backbone.linear.bias"].any()
    assert name not in gradients
    learner.end_task(STREAM.tasks[NOW].info, None)
    assert np.array_equal(learner.get_buffer(f"mask_{NOW}_0").numpy(), mask == 1)
    with torch.no_grad():
        features = learner.subnetwork(batch.x, NOW).numpy()
    assert np.allclose(features, [oracles.features({**net, "W": net["W"] * mask}, x) for x, _ in now])


def test_supsup_weights_never_move_and_batchnorm_follows_each_task() -> None:
    learner, _, states = scores_after_each_task("supsup")
    fan_in = 3 * 3 * 3  # of the first convolution
    first = states[0]["network.backbone.layers.0.weight"]
    assert torch.allclose(first.abs(), torch.tensor((2 / (0.5 * fan_in)) ** 0.5))
    for name in learner.state_dict():
        if name.startswith("network.backbone.") and name.endswith(("weight", "bias")):
            assert torch.equal(states[0][name], states[2][name]), name
    mean = learner.own_names.index("layers.1.running_mean")
    means = [states[2][f"own_{task}_{mean}"] for task in range(3)]
    assert torch.equal(means[0], states[0]["network.backbone.layers.1.running_mean"])
    assert not torch.equal(means[0], means[1])
    assert 0.4 < float(states[2]["mask_0_1"].float().mean()) < 0.6
    assert not torch.equal(states[2]["mask_0_1"], states[2]["mask_1_1"])


def test_supsup_ranks_the_task_of_least_entropy_first() -> None:
    learner = learner_in_last_task("supsup")
    unsure, sure = torch.tensor([[2.0, 1.9, 2.1]]), torch.tensor([[0.0, 3.0]])
    ranked = learner.rank([unsure, sure, torch.zeros(1, 2)])[0]
    assert ranked.argsort(descending=True).tolist()[:2] == [4, 3]  # both classes of the second task
    assert int(ranked[torch.tensor([0, 1, 2, 5, 6])].argmax()) == 3  # ln 2 of the third task is less than about ln 3


def hat_in_last_task() -> Learner[Any]:
    """HAT on two layers, in which earlier tasks use some units: all, half or none, as far as three or five go."""
    learner = learner_in_last_task("hat", backbone=TwoLayers(), max_scale=8.0, penalty=0.6, embedding_rate=2.0)
    far = [[[6, 6, -6, -6, -6], [6, -6, -6]], [[-6, 0.1, 0.05, -6, -6], [-6, 0.2, -6]]]
    with torch.no_grad():
        for task, layers in enumerate(far):
            for embedding, values in zip(learner.embeddings[task], layers, strict=True):
                embedding.copy_(torch.tensor(values))
        learner.embeddings[NOW][0][1] = 6.5  # a step clips it
    return learner


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_hat_step_equals_a_hand_computation() -> None:
    learner = hat_in_last_task()
    batch = double_batch()
    now = as_pairs(batch.images, batch.y)
    net = {name: tensor.numpy().copy() for name, tensor in learner.state_dict().items()}
    names = [f"embeddings.{NOW}.0", f"embeddings.{NOW}.1"]
    s = 1 / 8 + (8 - 1 / 8) * 0.2
    before = [np.maximum(*(sigmoid(8 * net[f"embeddings.{t}.{layer}"]) for t in (0, 1))) for layer in (0, 1)]

    def logits(n: oracles.Net, x: np.ndarray) -> np.ndarray:
        hidden, a = x, [sigmoid(s * n[name]) for name in names]
        for layer, name in enumerate(("first", "second")):
            hidden = a[layer] * (n[f"network.backbone.{name}.weight"] @ hidden + n[f"network.backbone.{name}.bias"])
            hidden = np.maximum(hidden, 0) if layer == 0 else hidden
        return n["network.heads.2.weight"] @ hidden + n["network.heads.2.bias"]

    def loss(n: oracles.Net) -> float:
        a = [sigmoid(s * n[name]) for name in names]
        used = sum(float((x * (1 - b)).sum()) for x, b in zip(a, before, strict=True))
        ce = oracles.mean([oracles.cross_entropy(logits(n, x), y - 5, range(2)) for x, y in now])
        return ce + 0.6 * used / sum(float((1 - b).sum()) for b in before)

    rate = 0.05
    found, gradients = run_step(learner, rate=rate, progress=0.2)
    assert found == pytest.approx(loss(net), rel=1e-9)
    layers = [f"network.backbone.{name}.weight" for name in ("first", "second")]
    expected = oracles.gradient(loss, net, (*names, *layers))
    now_held = {name: tensor.numpy() for name, tensor in learner.state_dict().items()}
    for name in names:
        e = net[name]
        compensated = expected[name] * 8 * (np.cosh(s * e) + 1) / (s * (np.cosh(e) + 1))
        assert np.allclose(gradients[name], compensated, atol=1e-7)
        assert np.allclose(now_held[name], np.clip(e - 2 * rate * compensated, -6, 6), atol=1e-7)
    used = [np.ones(16), before[0] > 1e-3]  # all of the image, and the first layer's units that a task uses
    for layer, name in enumerate(layers):
        free = 1 - np.minimum(before[layer][:, None], used[layer][None, :])
        assert np.allclose(now_held[name], net[name] - rate * free * expected[name], atol=1e-8)
        assert np.abs(expected[name]).max() > 1e-3
    assert now_held[names[0]].max() == 6
    assert used[1].tolist() == [True, True, True, False, False]


class Branches(nn.Module):
    """A shortcut, a grouped convolution, a norm that is not after a layer, and maps that are flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4)
        self.b = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.c, self.mixed, self.d = nn.Linear(4 * 4, 3), nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.a(x)))
        x = nn.functional.avg_pool2d(x + torch.relu(self.b(x)), 3, 3)
        return self.d(self.mixed(nn.functional.gelu(self.c(x.flatten(1)))))


def test_used_inputs_are_found_through_shortcuts_pooling_and_flattening() -> None:
    net, shape = Branches(), (3, 14, 14)
    points = find_points(net, shape)
    assert points == {"a": "norm", "b": "b", "c": "c", "d": "d"}
    units = {"a": [1, 0, 0, 0.5], "b": [0, 1, 0, 0], "c": [0.0, 0, 0], "d": [0.0, 0]}
    used = used_inputs(net, shape, points, {name: torch.tensor(values).float() for name, values in units.items()})
    assert used["a"].tolist() == [True] * 3
    assert used["b"].tolist() == [True, False, False, True]
    assert used["c"].tolist() == [used for used in (True, True, False, True) for _ in range(4)]
    assert used["d"].tolist() == [True] * 3  # the norm mixes units
    x = torch.randn(2, *shape)
    with torch.no_grad(), masking(net.eval(), points, {"a": torch.tensor([1.0, 0, 0, 0]), "c": torch.zeros(3)}):
        masked = net(x)
    with torch.no_grad():
        assert torch.allclose(masked, net.d(net.mixed(torch.zeros(2, 3))))
    assert not any(module._forward_hooks for module in net.modules())


def test_hat_keeps_what_earlier_tasks_use() -> None:
    learner, scores, states = scores_after_each_task("hat", max_scale=4000.0)
    assert torch.allclose(scores[0], scores[2][:, :2], atol=1e-5)
    assert torch.allclose(scores[1], scores[2][:, :4], atol=1e-5)
    inputs, units = (learner.attention_before(2)[layer] for layer in ("layers.0", "layers.4"))
    kept = (units[:, None] == 1) & (inputs[None, :] > 1e-3)
    first, last = (states[task]["network.backbone.layers.4.weight"] for task in (1, 2))
    assert torch.equal(first[kept], last[kept])
    assert 0 < float(kept.float().mean()) < 1
    assert bool((first[~kept] != last[~kept]).any())


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("packnet", "prune", 1.0),
        ("packnet", "retrain", -0.5),
        ("pnn", "lateral", -1.0),
        ("supsup", "density", 0.0),
        ("hat", "penalty", -1.0),
    ],
)
def test_options_out_of_range_are_refused(name: str, option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{option}.*{value}"):
        type(methods()[name].config)(**{option: value})
