"""Small streams and learners for the checks, and what is compared before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recollect.core.frozen import Averaged, Frozen
from recollect.engine import Engine, Observer, Runtime, Training
from recollect.methods import Learner, Method, Schedule, build_learner
from recollect.nets.convnet import ConvNet
from recollect.rng import Key
from recollect.streams import Stream, stream_from_tensors

SMALL = {
    "memory": 6,
    "auxiliary_dim": 8,
    "projection_dim": 4,
    "random_dim": 40,
    "attention_dim": 4,
    "fisher_samples": 5,
}
EPOCHS = 2


def make_stream(
    sizes: Sequence[int] = (2, 2),
    per_class: int = 10,
    size: int = 16,
    channels: int = 3,
    seed: int = 0,
    repeats: int = 0,
) -> Stream:
    """Random images whose brightness tells the class, in tasks of the given sizes; the last one repeats some."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(sum(sizes)).repeat_interleave(per_class)
    noise = torch.randint(0, 60, (len(labels), channels, size, size), generator=generator)
    images = (noise + (labels * 180 // max(sum(sizes) - 1, 1))[:, None, None, None]).to(torch.uint8)
    names = [str(label) for label in range(sum(sizes))]
    tasks = [names[sum(sizes[:t]) : sum(sizes[: t + 1])] for t in range(len(sizes))]
    tasks[-1] += names[:repeats]
    return stream_from_tensors(images, labels, images.flip(0), labels.flip(0), tasks=tasks, crop_padding=2)


class Own(nn.Module):
    """A backbone as users have them: a frozen layer with its norm, and a head left over from its first life."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Flatten(), nn.Linear(768, 12), nn.BatchNorm1d(12)).requires_grad_(False)
        self.layers = nn.Sequential(nn.Linear(12, 10), nn.Dropout(0.1))
        self.fc = nn.Linear(10, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.frozen(x))  # type: ignore[no-any-return]


def make_small(row: Method, **given: Any) -> Method:
    """The method with its usual options made small, and those given."""
    known = {field.name for field in dataclasses.fields(row.config)}
    usual = {name: value for name, value in SMALL.items() if name in known}
    return row._replace(config=dataclasses.replace(row.config, **usual | given))


def build(
    row: Method, stream: Stream, backbone: nn.Module | None = None, epochs: int = EPOCHS, patience: int = 0
) -> Learner[Any]:
    """A learner before its first task."""
    with Key(1).initialising():
        backbone = backbone or ConvNet(stream.image_shape[0], 4)
    schedule, flips = Schedule(epochs, 1e-2, patience), stream.pixels.flip
    return build_learner(row.learner, row.config, backbone, stream.image_shape, schedule, Key(1), flips=flips)


def teach(learner: Learner[Any], stream: Stream, **options: Any) -> Engine:
    """Learn the stream on this machine's processor or accelerator."""
    training = Training(epochs=EPOCHS, learning_rate=1e-2, batch_size=8)
    engine = Engine(learner, stream, training, Runtime.choose(), 1, **options)
    engine.run()
    return engine


class StopError(Exception):
    """Raised by `StopAt`."""


class StopAt(Observer):
    """Stops a run after a number of images, which may be in the middle of a phase."""

    def __init__(self, num_images: float) -> None:
        self.left = num_images

    def advance(self, num_images: int) -> None:
        self.left -= num_images
        if self.left < 0:
            raise StopError


def begin_first_task(row: Method, stream: Stream) -> Learner[Any]:
    learner = build(row, stream)
    learner.begin_task(stream.tasks[0].info)
    return learner


def copy_untrained(learner: nn.Module, trained: set[int]) -> dict[str, Tensor]:
    """Copies of all parameters that are neither trained nor averages, which move by their own rule."""
    averages = [f"{prefix}." for prefix, module in learner.named_modules() if isinstance(module, Averaged)]
    return {
        name: parameter.detach().clone()
        for name, parameter in learner.named_parameters()
        if id(parameter) not in trained and not name.startswith(tuple(averages))
    }


def copy_statistics(learner: nn.Module, trained_modules: set[int]) -> dict[str, Tensor]:
    """Copies of the BatchNorm statistics of modules that evaluate; an average's and an adapting teacher's may move."""
    moving = [
        f"{prefix}."
        for prefix, module in learner.named_modules()
        if isinstance(module, Averaged) or (isinstance(module, Frozen) and module.statistics == "adapting")
    ]
    return {
        f"{name}.running_mean": module.get_buffer("running_mean").clone()
        for name, module in learner.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        and id(module) not in trained_modules
        and not name.startswith(tuple(moving))
    }


def assert_same(a: nn.Module, b: nn.Module, what: str) -> None:
    mine, theirs = a.state_dict(), b.state_dict()
    assert mine.keys() == theirs.keys(), f"{what} has other tensors"
    different = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not different, f"{what} differs in {different[:3]}"
