"""What runs will cost, before they start: hours by timing a few training steps here, gigabytes by arithmetic.

Every backbone is timed several times, in turns with the others, so that a moment of load on the machine does not fall
on one of them; the median counts. A method's hours are those of training its backbone times the cost in the method's
own row. The hours on a GPU are arithmetic on counted floating-point operations; nothing is measured on one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from recollect.engine import Runtime
from recollect.nets import as_backbone, backbones
from recollect.runs import RunConfig
from recollect.streams import streams

MOMENTS = 2  # of Adam, in a checkpoint inside a phase
CHECKPOINTS = 2
BATCH = 32
MIN_ROUNDS, MIN_SECONDS = 5, 4.0  # of timing
FASTER, SLOWER = 1.5, 2.5  # the range; runs of five methods on split-digits took 1.0 to 2.2 times as long as estimated
GPU_FLOPS = 10e12  # per second, a guess of what one GPU sustains in such training
GPU_STEP_SECONDS = 0.01  # a guess of what launching a step takes, however small the network is


@dataclass(frozen=True)
class Cost:
    """Of one run, roughly."""

    hours: float
    gpu_hours: float
    gigabytes: float


class Timing(NamedTuple):
    """Of training a backbone, per image."""

    seconds: float
    flops: float
    num_parameters: int


def estimate(configs: Sequence[RunConfig], device: str, threads: int) -> list[Cost | None]:
    """The cost of each run on the device; unknown for streams whose size only their data tells."""
    trainers: dict[tuple[Any, ...], _Trainer] = {}
    for config in configs:
        size = streams()[config.stream].size
        if size is not None and _key(config) not in trainers:
            runtime = Runtime.choose(device, config.precision, threads)
            trainers[_key(config)] = _Trainer(config.backbone, config.backbone_options, size.image_shape, runtime)
    timings = dict(zip(trainers, _time_in_turns(list(trainers.values()), MIN_SECONDS), strict=True))
    return [_cost(config, timings[_key(config)]) if _key(config) in timings else None for config in configs]


def seconds_an_image(
    backbone: str,
    options: Mapping[str, Any],
    shape: tuple[int, int, int],
    runtime: Runtime,
    batch_size: int = BATCH,
) -> float:
    """Of training such a backbone here, by timing a few steps of at most so many images."""
    trainer = _Trainer(backbone, options, shape, runtime, min(batch_size, BATCH))
    return _time_in_turns([trainer], min_seconds=0.0)[0].seconds


def _key(config: RunConfig) -> tuple[Any, ...]:
    """The same for runs whose steps take equally long."""
    size = streams()[config.stream].size
    options = tuple(sorted(config.backbone_options.items()))
    return config.backbone, options, size and size.image_shape, config.precision


def _cost(config: RunConfig, timing: Timing) -> Cost:
    size, method = streams()[config.stream].size, config.method_row
    assert size is not None
    per_class = min(config.stream_options.train_per_class or size.train_per_class, size.train_per_class)
    num_images = per_class * size.num_classes * (1 - config.stream_options.validation)
    if config.stream_options.shift != "none" and isinstance(config.stream_options.tasks, int):
        num_images *= config.stream_options.tasks  # every task has all classes
    num_trained = num_images * config.training.epochs * method.cost
    on_gpu = max(timing.flops / GPU_FLOPS, GPU_STEP_SECONDS / config.training.batch_size)
    values = timing.num_parameters * (method.copies + MOMENTS)
    channels, height, width = size.image_shape
    pixels = getattr(config.method_options, "memory", 0) * channels * height * width
    gigabytes = CHECKPOINTS * (4 * values + pixels) / 2**30
    return Cost(num_trained * timing.seconds / 3600, num_trained * on_gpu / 3600, gigabytes)


class _Trainer:
    """A backbone with a head, and images for a training step."""

    def __init__(
        self,
        backbone: str,
        options: Mapping[str, Any],
        shape: tuple[int, int, int],
        runtime: Runtime,
        batch_size: int = BATCH,
    ) -> None:
        make = backbones()[backbone].make
        has_weights = "weights" in signature(make).parameters
        untrained = {"weights": "none"} if has_weights else {}  # the same work, nothing to fetch
        made = as_backbone(make(shape, **{**options, **untrained}), shape)
        feature_dim: int = made.feature_dim  # type: ignore[assignment]
        self.network = nn.Sequential(made, nn.Linear(feature_dim, 10))
        runtime.place(self.network)
        self.images = torch.randn(max(batch_size, 2), *shape).to(runtime.device)  # BatchNorm wants two
        self._runtime = runtime
        self._adam = torch.optim.Adam([p for p in self.network.parameters() if p.requires_grad], fused=True)

    def seconds(self) -> float:
        """Of one training step."""
        started = perf_counter()
        self._adam.zero_grad()
        with self._runtime.autocast():
            loss = self.network(self.images).float().square().mean()
        loss.backward()
        self._adam.step()
        float(loss.detach())
        return perf_counter() - started


def _time_in_turns(trainers: Sequence[_Trainer], min_seconds: float) -> list[Timing]:
    flops = []
    for trainer in trainers:
        with FlopCounterMode(display=False) as counter:
            trainer.seconds()  # the first step, which allocates, is not timed
        flops.append(counter.get_total_flops())
    rounds: list[list[float]] = []
    started = perf_counter()
    while len(rounds) < MIN_ROUNDS or perf_counter() - started < min_seconds:
        rounds.append([trainer.seconds() for trainer in trainers])
    return [
        Timing(median(seconds) / len(t.images), num / len(t.images), sum(p.numel() for p in t.network.parameters()))
        for t, num, seconds in zip(trainers, flops, zip(*rounds, strict=True), strict=True)
    ]
