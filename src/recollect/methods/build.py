"""The one builder of learners: a backbone becomes a network with heads, and a method's learner takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn

from recollect.methods.learner import Learner, Schedule, Setup
from recollect.nets import Network, as_backbone, backbones
from recollect.rng import Key

L = TypeVar("L", bound=Learner[Any])


def build_backbone(name: str, options: Mapping[str, Any], image_shape: tuple[int, int, int], key: Key) -> nn.Module:
    """A registered backbone, initialised from a learner's key."""
    with (key / "backbone").initialising():
        backbone: nn.Module = backbones()[name].make(image_shape, **options)
    return backbone


def build_learner(
    learner: Callable[[Network, Any, Setup], L],
    config: Any,
    backbone: nn.Module,
    image_shape: tuple[int, int, int],
    schedule: Schedule,
    key: Key,
    *,
    fixed_heads: Sequence[int] = (),
    flips: bool = False,
) -> L:
    """A learner before its first task, from its class and config; any module with features [batch, dim] will do."""
    network = Network(as_backbone(backbone, image_shape), key, fixed_heads)
    return learner(network, config, Setup(image_shape, schedule, key, flips))
