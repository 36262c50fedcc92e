"""What a sweep will cost, before it starts: hours by timing a few steps of each backbone here, gigabytes by arithmetic.

A method's hours are those of training its backbone times the cost in the method's own row; they are a rough guess for
this machine only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from time import perf_counter
from typing import Any

import torch
from torch import nn

from recollect.engine import Runtime
from recollect.nets import as_backbone, backbones
from recollect.runs import RunConfig
from recollect.streams import streams

MOMENTS = 2  # of Adam, in a checkpoint inside a phase
CHECKPOINTS = 2
BATCH, STEPS = 32, 3


@dataclass(frozen=True)
class Cost:
    """Of one run, roughly."""

    hours: float
    gigabytes: float


class Estimator:
    """Times each backbone once, on the device that the runs would use."""

    def __init__(self, device: str, threads: int) -> None:
        self._device, self._threads = device, threads
        self._known: dict[tuple[Any, ...], tuple[float, int]] = {}

    def cost(self, config: RunConfig) -> Cost | None:
        """Unknown for streams whose size only their data tells."""
        size, method = streams()[config.stream].size, config.method_row
        if size is None:
            return None
        per_class = min(config.stream_options.train_per_class or size.train_per_class, size.train_per_class)
        num_images = per_class * size.num_classes * (1 - config.stream_options.validation)
        seconds, num_parameters = self._backbone(config, size.image_shape)
        training = seconds * num_images * config.training.epochs * method.cost
        values = num_parameters * (method.copies + MOMENTS)
        channels, height, width = size.image_shape
        pixels = getattr(config.method_options, "memory", 0) * channels * height * width
        return Cost(training / 3600, CHECKPOINTS * (4 * values + pixels) / 2**30)

    def _backbone(self, config: RunConfig, image_shape: tuple[int, int, int]) -> tuple[float, int]:
        """Seconds an image in training, and parameters."""
        key = (config.backbone, tuple(sorted(config.backbone_options.items())), image_shape, config.precision)
        if key not in self._known:
            network = _network(config.backbone, config.backbone_options, image_shape)
            num = sum(parameter.numel() for parameter in network.parameters())
            runtime = Runtime.choose(self._device, config.precision, self._threads)
            self._known[key] = _seconds(network, image_shape, runtime), num
        return self._known[key]


def seconds_an_image(
    backbone: str,
    options: Mapping[str, Any],
    shape: tuple[int, int, int],
    runtime: Runtime,
    batch_size: int = BATCH,
) -> float:
    """Of training such a backbone here, by timing a few steps of at most so many images."""
    return _seconds(_network(backbone, options, shape), shape, runtime, min(batch_size, BATCH))


def _network(backbone: str, options: Mapping[str, Any], shape: tuple[int, int, int]) -> nn.Module:
    make = backbones()[backbone].make
    untrained = (
        {"weights": "none"} if "weights" in signature(make).parameters else {}
    )  # the same work, nothing to fetch
    made = as_backbone(make(shape, **{**options, **untrained}), shape)
    feature_dim: int = made.feature_dim  # type: ignore[assignment]
    return nn.Sequential(made, nn.Linear(feature_dim, 10))


def _seconds(network: nn.Module, shape: tuple[int, int, int], runtime: Runtime, batch_size: int = BATCH) -> float:
    runtime.place(network)
    images = torch.randn(max(batch_size, 2), *shape).to(runtime.device)  # BatchNorm wants two
    return min(_step(network, images, runtime) for _ in range(STEPS + 1)) / len(images)


def _step(network: nn.Module, images: torch.Tensor, runtime: Runtime) -> float:
    started = perf_counter()
    network.zero_grad()
    with runtime.autocast():
        loss = network(images).float().square().mean()
    loss.backward()
    float(loss.detach())
    return perf_counter() - started
