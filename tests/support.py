"""What tests of several packages share: the command line, small streams and learners, and steps of training."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn

from recollect.cli import main
from recollect.engine import Engine, Observer, Runtime, Training
from recollect.engine.feature_cache import SampleCache
from recollect.methods import BaselineConfig, CachedFunctions, Learner, Phase, Schedule, Update, build_learner, methods
from recollect.methods._rfe_memory import Recall
from recollect.nets.convnet import ConvNet
from recollect.rng import Key
from recollect.streams import Batch, Stream, TaskInfo, augment
from recollect.testing.harness import StopAt as StopAt
from recollect.testing.harness import StopError as StopError
from recollect.testing.harness import make_stream as make_stream

SMALL = {"memory": 8, "auxiliary_dim": 8, "projection_dim": 4, "random_dim": 40}


def make_learner(
    name: str,
    stream: Stream,
    *,
    epochs: int = 1,
    seed: int = 0,
    backbone: nn.Module | None = None,
    fixed_heads: tuple[int, ...] = (),
    **options: Any,
) -> Learner[Any]:
    """A small learner of the named method."""
    row, key = methods()[name], Key(seed)
    fields = {field.name for field in dataclasses.fields(row.config)}
    own = {name: value for name, value in (SMALL | options).items() if name in fields}
    config = dataclasses.replace(row.config, **own)
    if backbone is None:
        with key.initialising():
            backbone = ConvNet(stream.image_shape[0], 4)
    schedule = Schedule(epochs, 1e-2)
    return build_learner(
        row.learner,
        config,
        backbone,
        stream.image_shape,
        schedule,
        key,
        fixed_heads=fixed_heads,
        flips=stream.pixels.flip,
    )


def teach(
    learner: Learner[Any],
    stream: Stream,
    *,
    seed: int = 0,
    precision: str = "fp32",
    batch_size: int = 8,
    schedule: Literal["plateau", "cosine"] = "plateau",
    **options: Any,
) -> Engine:
    """Run the engine over a stream, for as many epochs as the learner was made for."""
    epochs = learner.setup.schedule.epochs
    training = Training(epochs=epochs, learning_rate=1e-2, batch_size=batch_size, schedule=schedule)
    engine = Engine(learner, stream, training, Runtime.choose("cpu", precision), seed, **options)
    engine.run()
    return engine


class Plain(Learner[BaselineConfig]):
    """The simplest method that conforms."""

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, self.config.units)

    def step(self, batch: Batch, update: Update) -> None:
        update(self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


def batch_of(stream: Stream, task: int, num: int = 8) -> Batch:
    """An augmented batch of a task's first training images."""
    images, labels = stream.tasks[task].train.take(torch.arange(num))
    key = Key(99) / task
    return Batch(images, augment(images, stream.pixels, (key / "view").generator()), labels, stream.pixels, key)


def phases(learner: Learner[Any], stream: Stream, task: int) -> dict[str, Phase]:
    """The phases of a task by name."""
    return {phase.name: phase for phase in learner.phases(stream.tasks[task].info)}


def with_features(cached: CachedFunctions | None, batch: Batch) -> Batch:
    """The batch with the outputs of a phase's cached functions, as the engine gives it."""
    if cached is None:
        return batch
    recall = None
    if cached.memory is not None:
        recall = partial(SampleCache(cached, batch.pixels, batch.x.device).recall, batch.key)
    return dataclasses.replace(batch, cached=cached(batch.x), recall=recall)


def loss_of(phase: Phase, batch: Batch) -> Tensor:
    """The loss that one step of a phase gives to `update`."""
    losses: list[Tensor] = []
    for module in phase.training:
        module.train()
    phase.step(with_features(phase.cached, batch), lambda loss, edit=None: losses.append(loss))
    assert len(losses) == 1
    return losses[0]


class Recorder(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.images = 0
        self.announced = 0

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def phase(self, title: str, num_images: int) -> None:
        self.announced += num_images

    def advance(self, num_images: int) -> None:
        self.images += num_images


def is_trained(name: str) -> bool:
    """Whether the method has a training phase; some only take statistics of a frozen network."""
    stream = make_stream()
    learner = make_learner(name, stream)
    learner.begin_task(stream.tasks[0].info)
    return any(True for _ in learner.phases(stream.tasks[0].info))


def after_task(name: str, stream: Stream, num: int, **options: Any) -> Learner[Any]:
    """A learner that has begun task `num` (0-based) after learning those before it; its teacher just evaluates."""
    learner = make_learner(name, stream, **({"teacher_statistics": "frozen"} | options))
    part = Stream(stream.name, stream.tasks[:num], stream.pixels, stream.image_shape)
    teach(learner, part)
    learner.begin_task(stream.tasks[num].info)
    return learner


def recall_loss(learner: Learner[Any], stream: Stream, task: int, batch: Batch, **changes: Any) -> Tensor:
    cached = phases(learner, stream, task)["retrospect"].cached
    assert cached is not None
    batch = with_features(dataclasses.replace(cached, **changes), batch)
    return Recall(learner.past, task, learner.rfe).loss(batch)


def mse(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b) ** 2).sum() / a.numel()


def warm(learner: Learner[Any], stream: Stream, num_tasks: int) -> Engine:
    """An engine whose learner has learned the first tasks."""
    part = Stream(stream.name, stream.tasks[:num_tasks], stream.pixels, stream.image_shape)
    return teach(learner, part)


def recollect(*arguments: object, cwd: Path | None = None, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """Run a command line in this process, which saves the seconds that importing torch takes."""
    command = ["recollect", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    code, threads = 0, torch.get_num_threads()
    with (
        chdir(cwd) if cwd else nullcontext(),
        mock.patch.object(sys, "argv", command),
        warnings.catch_warnings(action="default"),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            torch.set_num_threads(threads)  # else `--threads` of one command slows down all further tests
    stdout, stderr = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(command, code, stdout, stderr)


def recollect_process(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own, as a shell does."""
    command = [sys.executable, "-m", "recollect", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
