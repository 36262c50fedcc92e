"""What a backbone is: a module from images [b, c, h, w] to features [b, feature_dim] that says how they look.

`nonnegative` tells retrospectors to end in ReLU. Any module serves: `as_backbone` finds its dimension by a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.registry import discover, lookup

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of pixels from 0 to 1, channel by channel. A pretrained backbone has what it was trained with."""


@runtime_checkable
class Backbone(Protocol):
    """The contract; a module that has these attributes needs no wrapping."""

    feature_dim: int
    nonnegative: bool


class Wrapped(nn.Module):
    """A user's own module with the attributes that a backbone needs."""

    def __init__(self, module: nn.Module, feature_dim: int, nonnegative: bool) -> None:
        super().__init__()
        self.module = module
        self.feature_dim = feature_dim
        self.nonnegative = nonnegative
        self.normalisation: Normalisation | None = getattr(module, "normalisation", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)  # type: ignore[no-any-return]


def as_backbone(
    module: nn.Module,
    image_shape: tuple[int, int, int],
    *,
    feature_dim: int | None = None,
    nonnegative: bool | None = None,
) -> nn.Module:
    """`module` as a backbone for images of `image_shape`; what is not given is asked of it or found by a dry run."""
    if isinstance(module, Backbone) and feature_dim is None and nonnegative is None:
        return module
    if feature_dim is None:
        feature_dim = getattr(module, "feature_dim", None) or _dry_run(module, image_shape)
    if nonnegative is None:
        nonnegative = bool(getattr(module, "nonnegative", False))
    return Wrapped(module, feature_dim, nonnegative)


@torch.no_grad()
def _dry_run(module: nn.Module, image_shape: tuple[int, int, int]) -> int:
    reference = next(module.parameters(), torch.zeros(()))
    was_training = module.training
    try:
        features = module.eval()(torch.zeros(2, *image_shape, device=reference.device, dtype=reference.dtype))
    except (RuntimeError, ValueError, TypeError) as error:
        raise UserError(
            f"the backbone {type(module).__name__} does not take images of shape {image_shape}: {error}"
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(
            f"a backbone gives features of shape [batch, dim], but {type(module).__name__} gave {shape}; "
            "flatten its output or wrap it"
        )
    return features.shape[1]


class Recipe(NamedTuple):
    """A row of a backbone file's table: a function of the image shape and keyword options, and how it trains best."""

    make: Callable[..., nn.Module]
    training: Mapping[str, Any] = {}
    """Training options that win over a stream's protocol."""
    omitted_at_default: tuple[str, ...] = ()
    """Options that a configuration names only if they differ from their default, as in earlier configurations."""
    for_pretrained_models: Mapping[str, Any] = {}
    """Options of new models of `recollect learn` that start from its pretrained weights, unless they are given."""


def backbones() -> dict[str, Recipe]:
    """All registered backbones."""
    return discover("recollect.nets", "BACKBONES")


def is_pretrained(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a registered backbone with these options starts from pretrained weights."""
    weights = signature(lookup("backbone", backbones(), name).make).parameters.get("weights")
    return weights is not None and options.get("weights", weights.default) != "none"


def _given_in_python(image_shape: tuple[int, int, int]) -> nn.Module:
    """A module of your own, from Python: run(config, out, backbone=module)."""
    raise UserError(
        "the backbone 'own' is a module given in Python: ContinualClassifier(backbone=module), "
        "recollect.run(config, out, backbone=module) or recollect.load_run(out, backbone=module)"
    )


BACKBONES = {"own": Recipe(_given_in_python)}
