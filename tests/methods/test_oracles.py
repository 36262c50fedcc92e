"""One step of every method in double precision: its loss and gradient equal an independent computation in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.methods import Learner
from recollect.rng import Key
from recollect.streams import Batch, Moves, TaskData
from tests.methods import oracles
from tests.methods.oracles import Net
from tests.support import make_learner, make_stream

UNITS = [range(0, 2), range(2, 5), range(5, 7)]
EVERYTHING = range(7)
NOW = 2  # the task being learned: the third, so that there is more than one old one


class Linear(nn.Module):
    """f(x) = relu(W x + b) on 1 x 16 x 16 images pooled to 4 x 4."""

    feature_dim, nonnegative = 4, True

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(nn.functional.avg_pool2d(x, 4).flatten(1)))


class Double:
    """Shows stored images in double precision, without augmentation."""

    def normalise(self, images: Tensor) -> Tensor:
        return images.double() / 100

    def draw(self, num: int, rng: torch.Generator) -> Moves:
        return Moves(*torch.zeros(3, num))

    def crop_and_flip(self, images: Tensor, moves: Moves) -> Tensor:
        return images


PIXELS: Any = Double()
STREAM = make_stream((2, 3, 2), per_class=6, channels=1)


def batch_of(task: int = NOW, num: int = 7) -> Batch:
    split = STREAM.tasks[task].train
    images, labels = split.take(torch.arange(len(split))[:: max(1, len(split) // num)][:num])
    return Batch(images, PIXELS.normalise(images), labels, PIXELS, Key(3) / task)


def as_pairs(images: Tensor, labels: Tensor) -> list[tuple[np.ndarray, int]]:
    x = nn.functional.avg_pool2d(PIXELS.normalise(images), 4).flatten(1).numpy()
    return [(row, int(y)) for row, y in zip(x, labels, strict=True)]


def as_net(state: dict[str, Tensor], prefix: str = "network.") -> Net:
    """Our state dict under the oracle's short names."""
    net = {}
    for name, tensor in state.items():
        value = tensor.detach().double().numpy().copy()
        if name == f"{prefix}backbone.linear.weight":
            net["W"] = value
        elif name == f"{prefix}backbone.linear.bias":
            net["b"] = value
        elif name.startswith(f"{prefix}heads."):
            t, kind = name.removeprefix(f"{prefix}heads.").split(".")
            net[("V" if kind == "weight" else "c") + t] = value
        elif name.startswith("attentions."):
            _, t, layer, kind = name.split(".")
            net[{"0weight": "A", "0bias": "a", "2weight": "B", "2bias": "e"}[layer + kind] + t] = value
    return net


def begun(name: str, **options: Any) -> Learner[Any]:
    """A learner in double precision that has begun all tasks, its weights moved off their start."""
    learner = make_learner(name, STREAM, backbone=Linear(), **options)
    for task in STREAM.tasks:
        learner.begin_task(task.info)
        learner.double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        learner.network.backbone.linear.bias.add_(0.5)
    return learner


class Spy:
    """Stands in for the optimiser: takes the loss and the gradients, and moves nothing unless told a step."""

    def __init__(self, parameters: list[nn.Parameter], rate: float = 0.0) -> None:
        self.parameters, self.rate = parameters, rate
        self.loss, self.found = 0.0, [torch.zeros(0)]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        grads = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return [g.clone() for g in grads]

    def __call__(self, loss: Tensor, edit: Any = None) -> None:
        self.found = self.gradients(loss)
        if edit is not None:
            edit(self.found)
        self.loss = loss.item()
        with torch.no_grad():
            for parameter, g in zip(self.parameters, self.found, strict=True):
                parameter -= self.rate * g


def step(learner: Learner[Any], batch: Batch, rate: float = 0.0) -> tuple[float, Net]:
    """Loss and gradients of one step of the last task, by the oracle's names."""
    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    learner.requires_grad_(False)
    trained = [p.requires_grad_(True) for group in phase.groups.values() for p in group]
    spy = Spy(trained, rate)
    phase.step(batch, spy)
    name_of = {id(p): name for name, p in learner.named_parameters()}
    gradients = {name_of[id(p)]: g for p, g in zip(trained, spy.found, strict=True)}
    return spy.loss, as_net(gradients)


def check_agrees(found: tuple[float, Net], oracle: Any, net: Net) -> None:
    loss, gradients = found
    assert loss == pytest.approx(oracle(net), rel=1e-9)
    expected = oracles.gradient(oracle, net, tuple(gradients))
    for name, g in gradients.items():
        assert np.allclose(g, expected[name], atol=2e-8, rtol=1e-6), name
    assert any(np.abs(g).max() > 1e-3 for g in gradients.values())


def remembered(learner: Learner[Any]) -> tuple[list, list[int]]:
    """What the memory holds, which is less than a batch: every draw is all of it."""
    memory = learner.memories()[0]
    n = len(memory)
    assert 0 < n < 7
    return as_pairs(memory.images[:n], memory.labels[:n]), memory.tasks[:n].tolist()


def fill(learner: Learner[Any]) -> None:
    """Three samples of each old task, in a memory of six."""
    for task in (0, 1):
        learner.remember(batch_of(task, 3))


def scope_of(units: str) -> oracles.Scope:
    """Over which units the cross-entropy of a label goes."""
    return lambda y: EVERYTHING if units == "seen" else next(each for each in UNITS if y in each)


both_units = pytest.mark.parametrize("units", ["seen", "task"])


@both_units
def test_er(units: str) -> None:
    learner = begun("er", memory=6, units=units)
    fill(learner)
    past, _ = remembered(learner)
    batch = batch_of()
    now = as_pairs(batch.images, batch.y)
    scope = scope_of(units)
    check_agrees(
        step(learner, batch), lambda n: oracles.er(n, now, past, scope(6), scope), as_net(learner.state_dict())
    )


@both_units
def test_er_ace_ignores_classes_outside_the_current_task_in_the_incoming_loss(units: str) -> None:
    learner = begun("er-ace", memory=6, units=units)
    fill(learner)
    past, _ = remembered(learner)
    batch = batch_of()
    now = as_pairs(batch.images, batch.y)
    net = as_net(learner.state_dict())
    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    watched = phase.validate(batch).losses["classifier"].item()
    assert watched == pytest.approx(oracles.replayed(net, now, lambda y: UNITS[NOW]), rel=1e-9)
    check_agrees(step(learner, batch), lambda n: oracles.er(n, now, past, UNITS[NOW], scope_of(units)), net)


@both_units
@pytest.mark.parametrize("two_draws", [False, True])
def test_derpp_compares_with_the_logits_of_storing_time_on_units_known_then(two_draws: bool, units: str) -> None:
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
        phase.step(batch_of(task, 3), Spy(trained, rate=0.5))  # moves the weights after the logits were taken
        held = as_pairs(learner.memory.images, learner.memory.labels)
        for slot in range(3 * task, 3 * task + 3):
            stored[slot] = oracles.logits(then, oracles.features(then, held[slot][0]))
    assert [len(stored[slot]) for slot in range(6)] == [2, 2, 2, 5, 5, 5]
    batch = batch_of(num=4)  # fewer than the memory holds, so that two draws differ
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
    learner = begun("agem", memory=4, units=units)
    data = TaskData(STREAM.tasks[0].train, PIXELS, torch.device("cpu"), 16, Key(1))
    learner.end_task(STREAM.tasks[0].info, data)
    past, tasks = remembered(learner)
    assert set(tasks) == {0}
    batch = batch_of()
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


def nudge(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


@both_units
def test_er_mkd_and_its_prediction_with_the_mean_of_both_weights(units: str) -> None:
    learner = begun("er-mkd", memory=6, distill=3.0, temperature=2.0, units=units)
    nudge(learner.teacher, 1)
    fill(learner)
    past, _ = remembered(learner)
    batch = batch_of()
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
def test_cls_er_learns_from_the_better_average_and_predicts_with_stable(units: str) -> None:
    learner = begun("cls-er", memory=6, distill=0.3, replay=0.9, units=units)
    nudge(learner.stable, 1)
    nudge(learner.plastic, 2)
    fill(learner)
    past, _ = remembered(learner)
    batch = batch_of()
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
def test_tamil_and_how_it_picks_attention(units: str) -> None:
    learner = begun("tamil", memory=6, replay=0.6, distill=0.3, pairwise=0.2, attention_dim=3, units=units)
    nudge(learner.teacher, 1)
    fill(learner)
    past, tasks = remembered(learner)
    assert set(tasks) == {0, 1}
    batch = batch_of()
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


def test_lwf_distils_every_old_head() -> None:
    learner = begun("lwf", distill=0.8, temperature=2.0)
    nudge(learner.previous.module, 1)
    batch = batch_of()
    now = as_pairs(batch.images, batch.y)
    before = as_net(learner.state_dict(), "previous.module.")
    assert "V2" not in before  # the copy was taken before the new head came
    net = as_net(learner.state_dict())
    check_agrees(step(learner, batch), lambda n: oracles.lwf(n, before, now, UNITS[NOW], UNITS[:NOW], 0.8, 2.0), net)


def test_ewc_penalty_and_fisher_information() -> None:
    learner = begun("ewc", penalty=3.0, decay=0.5, fisher_samples=100)
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
    batch = batch_of()
    now = as_pairs(batch.images, batch.y)
    net = as_net(learner.state_dict())
    check_agrees(step(learner, batch), lambda n: oracles.ewc(n, before, fisher, now, UNITS[NOW], 3.0), net)


def test_si_path_importance_and_penalty() -> None:
    learner = begun("si", penalty=2.0, damping=0.1)
    anchor = {"W": learner.get_buffer("anchor_0").numpy().copy(), "b": learner.get_buffer("anchor_1").numpy().copy()}
    importance = {name: np.full_like(value, 0.3) for name, value in anchor.items()}
    for index in (0, 1):
        learner.get_buffer(f"importance_{index}").fill_(0.3)
    batch = batch_of()
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
    learner = begun("expansion", auxiliary_dim=4)
    batch = batch_of()
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
    assert np.allclose(spy.found[-2].numpy(), expected["V"], atol=1e-7)
    assert np.allclose(spy.found[-1].numpy(), expected["c"], atol=1e-7)
    assert all(torch.equal(old[name], tensor) for name, tensor in learner.experts[0].state_dict().items())


def test_stable_and_plastic_coins_are_independent_streams() -> None:
    """In the method itself: each average moves as often as its own probability says, whatever the other does."""
    learner = begun("cls-er", memory=6, stable_frequency=0.4, plastic_frequency=0.6)
    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    spy = Spy([p.requires_grad_(True) for p in phase.groups["classifier"]])
    batch = batch_of()
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
    learner = begun(name, memory=6, **options)
    nudge(getattr(learner, average), 1)
    fill(learner)
    old, start = as_net(learner.state_dict(), f"{average}.module."), as_net(learner.state_dict())
    step(learner, batch_of(), rate=0.5)
    new, now = as_net(learner.state_dict(), f"{average}.module."), as_net(learner.state_dict())
    assert any(not np.allclose(start[key], now[key]) for key in old)
    for key in (key for key in old if key[0] in "WbVc"):  # d = 1 - 1/2 at the first move
        assert np.allclose(new[key], 0.5 * old[key] + 0.5 * now[key], atol=1e-12), key


def test_averages_move_only_when_their_coin_says_so() -> None:
    for frequency, moves in ((0.0, False), (1.0, True)):
        learner = begun("cls-er", stable_frequency=frequency, plastic_frequency=1.0 - frequency)
        before = as_net(learner.state_dict(), "stable.module.")
        nudge(learner.network, 3)
        step(learner, batch_of())
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
