"""The units of a backbone's layers (channels of a convolution, outputs of a linear layer), in any backbone.

A layer's units are masked at its point: the BatchNorm that reads the layer's output, or else the layer itself. Points
and connections between layers are found by running the backbone with hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

Units = Mapping[str, Tensor]
"""A value from 0 to 1 for each unit of a layer, by the layer's name."""
LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm)
UNUSED = 1e-3  # units below this value count as unused


def find_points(backbone: nn.Module, image_shape: tuple[int, int, int]) -> dict[str, str]:
    """The name of each layer's point, for layers that an image passes."""
    points: dict[str, str] = {}
    outputs: list[tuple[str, Tensor]] = []

    def look(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, _BatchNorm):
            points.update((layer, name) for layer, read in outputs if inputs and read is inputs[0])
        else:
            points[name] = name
            outputs.append((name, output))

    with _hooks(backbone, {n: look for n, m in backbone.named_modules() if isinstance(m, (*LAYERS, _BatchNorm))}):
        _run_on_ones(backbone, image_shape)
    return points


@contextmanager
def masking(backbone: nn.Module, points: Mapping[str, str], units: Units) -> Iterator[None]:
    """Multiply the units of the named layers, wherever the backbone runs inside."""
    layers = {points[layer]: layer for layer in units}

    def mask(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        layer = layers[name]
        return output * _along(units[layer], backbone.get_submodule(layer), output)

    with _hooks(backbone, dict.fromkeys(layers, mask)):
        yield


def used_inputs(
    backbone: nn.Module, image_shape: tuple[int, int, int], points: Mapping[str, str], units: Units
) -> dict[str, Tensor]:
    """Which inputs of the named layers a used unit reaches, or anything that is not a unit.

    The values of the units pass through the backbone in place of activations, so what lies between layers (pooling,
    shortcuts, flattening) carries them along. A module that has parameters or normalises, and is no layer's point,
    mixes units or adds to them: all that it puts out counts as used.
    """
    layers = {points[layer]: layer for layer in units}
    found: dict[str, Tensor] = {}

    def replace(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if name in units:
            x = inputs[0].abs()
            dim = x.dim() - 1 if isinstance(module, nn.Linear) else 1
            reached = x.transpose(0, dim).flatten(1).amax(1) > UNUSED
            found[name] = found[name] | reached if name in found else reached
        if name in layers:
            layer = layers[name]
            return _along(units[layer], backbone.get_submodule(layer), output).expand_as(output).clone()
        if name in units or not isinstance(output, Tensor):  # its point comes next
            return output
        return torch.ones_like(output)

    mixing = {
        name
        for name, module in backbone.named_modules()
        if name and (isinstance(module, NORMS) or any(True for _ in module.parameters(recurse=False)))
    }
    with _hooks(backbone, dict.fromkeys(mixing | set(units) | set(layers), replace)):
        _run_on_ones(backbone, image_shape)
    return found


def _along(values: Tensor, layer: nn.Module, output: Tensor) -> Tensor:
    """The values along the dimension of the units."""
    return values if isinstance(layer, nn.Linear) else values.view(-1, *[1] * (output.dim() - 2))


@contextmanager
def _hooks(backbone: nn.Module, after: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Call these functions with a module's name, the module, its inputs and its output, when it has run."""
    with ExitStack() as stack:
        for name, hook in after.items():
            named = lambda *call, name=name, hook=hook: hook(name, *call)  # noqa: E731
            stack.callback(backbone.get_submodule(name).register_forward_hook(named).remove)
        yield


@torch.no_grad()
def _run_on_ones(backbone: nn.Module, image_shape: tuple[int, int, int]) -> None:
    weight, was_training = next(backbone.parameters(), torch.zeros(())), backbone.training
    backbone.eval()(torch.ones(1, *image_shape, device=weight.device, dtype=weight.dtype))
    backbone.train(was_training)
