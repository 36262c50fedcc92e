"""Small networks: one that counts as pretrained, and one in double precision with a step of a method on it, to compare
with the oracles in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.methods import Learner
from recollect.nets.convnet import ConvNet
from recollect.rng import Key
from recollect.streams import Batch, Moves
from tests.methods import oracles
from tests.methods.oracles import Net
from tests.support import make_learner, make_stream

UNITS = [range(0, 2), range(2, 5), range(5, 7)]
EVERYTHING = range(7)
NOW = 2  # the task being learned: the third, so that there is more than one old one


def pretrained() -> nn.Module:
    """A network that counts as pretrained, as its images have a normalisation of their own."""
    with Key(0).initialising():
        backbone = ConvNet(3, 4)
    backbone.normalisation = ((0.5,) * 3, (0.5,) * 3)  # type: ignore[assignment]
    return backbone


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


def double_batch(task: int = NOW, num: int = 7) -> Batch:
    """Images of a task in double precision, spread over its training images."""
    split = STREAM.tasks[task].train
    images, labels = split.take(torch.arange(len(split))[:: max(1, len(split) // num)][:num])
    return Batch(images, PIXELS.normalise(images), labels, PIXELS, Key(3) / task)


def as_pairs(images: Tensor, labels: Tensor) -> list[tuple[np.ndarray, int]]:
    """Images as the input of `Linear`, each with its label."""
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


def learner_in_last_task(name: str, backbone: nn.Module | None = None, **options: Any) -> Learner[Any]:
    """A learner in double precision that has begun all tasks, its weights moved off their start."""
    learner = make_learner(name, STREAM, backbone=backbone or Linear(), **options)
    for task in STREAM.tasks:
        learner.begin_task(task.info)
        learner.double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        if backbone is None:
            learner.network.backbone.linear.bias.add_(0.5)
    return learner


def nudge(module: nn.Module, seed: int) -> None:
    """Add noise to all parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


class Spy:
    """Stands in for the optimiser: takes the loss and the gradients, and moves nothing unless given a rate."""

    def __init__(self, parameters: list[nn.Parameter], rate: float = 0.0) -> None:
        self.parameters, self.rate = parameters, rate
        self.loss, self.applied = 0.0, [torch.zeros(0)]  # the gradients after `edit`

    def gradients(self, loss: Tensor) -> list[Tensor]:
        grads = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return [g.clone() for g in grads]

    def __call__(self, loss: Tensor, edit: Any = None) -> None:
        self.applied = self.gradients(loss)
        if edit is not None:
            edit(self.applied)
        self.loss = loss.item()
        with torch.no_grad():
            for parameter, g in zip(self.parameters, self.applied, strict=True):
                parameter -= self.rate * g


def step(learner: Learner[Any], batch: Batch, rate: float = 0.0) -> tuple[float, Net]:
    """Loss and gradients of one step of the last task, by the oracle's names."""
    (phase,) = list(learner.phases(STREAM.tasks[NOW].info))
    learner.requires_grad_(False)
    trained = [p.requires_grad_(True) for group in phase.groups.values() for p in group]
    spy = Spy(trained, rate)
    phase.step(batch, spy)
    name_of = {id(p): name for name, p in learner.named_parameters()}
    gradients = {name_of[id(p)]: g for p, g in zip(trained, spy.applied, strict=True)}
    return spy.loss, as_net(gradients)


def check_agrees(result: tuple[float, Net], oracle: Any, net: Net) -> None:
    """Check that loss and gradients of a step are those of the oracle, and not all zero."""
    loss, gradients = result
    assert loss == pytest.approx(oracle(net), rel=1e-9)
    expected = oracles.gradient(oracle, net, tuple(gradients))
    for name, g in gradients.items():
        assert np.allclose(g, expected[name], atol=2e-8, rtol=1e-6), name
    assert any(np.abs(g).max() > 1e-3 for g in gradients.values())


def stored_samples(learner: Learner[Any]) -> tuple[list, list[int]]:
    """What the memory holds, which is less than a batch: every draw is all of it."""
    memory = learner.memories()[0]
    n = len(memory)
    assert 0 < n < 7
    return as_pairs(memory.images[:n], memory.labels[:n]), memory.tasks[:n].tolist()


def fill_memory(learner: Learner[Any]) -> None:
    """Three samples of each old task, in a memory of six."""
    now = learner.network.num_tasks
    for task in (0, 1):
        learner.network.num_tasks = task + 1  # samples are stored with the task under way
        learner.remember(double_batch(task, 3))
    learner.network.num_tasks = now


def scope_of(units: str) -> oracles.Scope:
    """Over which units the cross-entropy of a label goes."""
    return lambda y: EVERYTHING if units == "seen" else next(each for each in UNITS if y in each)


both_units = pytest.mark.parametrize("units", ["seen", "task"])
