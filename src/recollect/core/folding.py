"""Read-only copies of networks with BatchNorm folded into the layer before it.

In evaluation BatchNorm is a fixed scale and shift of each channel, so γ (W x + b - μ) / √(σ² + ε) + β is one layer with
other weights and biases.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from threading import Lock

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

TOLERANCE = 1e-3
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def folded(module: nn.Module, example_shape: tuple[int, ...], dtype: torch.dtype | None = None) -> nn.Module:
    """A frozen copy that evaluates, folded where that can be done.

    A module that cannot be traced, or whose folded form gives other outputs on an example, is copied as it is. With a
    `dtype` the copy's layers hold their weights in it, so that autocast to that type need not cast them at every call.
    The copy may be called by several threads at a time.
    """
    copy = _traced(deepcopy(module).eval().requires_grad_(False), example_shape)
    if not isinstance(copy, fx.GraphModule):
        copy = _OneAtATime(copy)
    for part in copy.modules():
        if isinstance(part, (*CONVOLUTIONS, nn.Linear)):
            part.to(dtype=dtype)
    return copy


class _OneAtATime(nn.Module):
    """A module that may store something on itself while it is called, as hooks do: threads wait for each other."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._lock = Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self._lock:
            output: Tensor = self.module(x)
            return output


def _traced(module: nn.Module, example_shape: tuple[int, ...]) -> nn.Module:
    weight = next(module.parameters(), torch.zeros(()))
    numbers = torch.linspace(-2, 2, 2 * torch.Size(example_shape).numel(), device=weight.device, dtype=weight.dtype)
    x = numbers.reshape(2, *example_shape)
    with torch.autocast(weight.device.type, enabled=False):  # in bf16, rounding alone would exceed the tolerance
        return _traced_at(module, x)


def _traced_at(module: nn.Module, x: Tensor) -> nn.Module:
    expected: Tensor = module(x)  # a module that is broken says so here
    try:
        graph = fx.symbolic_trace(module)  # has the module's layers; those that are folded are replaced by copies
    except (TypeError, ValueError, RuntimeError):
        # The module works, as was just seen: what fails is its forward on the stand-ins that tracing passes in, which
        # cannot be branched on, counted, or given to other libraries. Such a module is read as it is.
        return module
    _fold(graph)
    computed: Tensor = graph(x)
    if computed.shape != expected.shape:
        return module
    error = (computed - expected).abs().max()
    return graph if bool(error <= TOLERANCE * expected.abs().max()) else module


def _fold(graph: fx.GraphModule) -> None:
    modules = dict(graph.named_modules())
    calls = Counter(node.target for node in graph.graph.nodes if node.op == "call_module")
    for node in list(graph.graph.nodes):
        norm = modules.get(str(node.target)) if node.op == "call_module" else None
        before = node.args[0] if node.args else None
        if not isinstance(norm, NORMS) or norm.running_mean is None or not isinstance(before, fx.Node):
            continue
        layer = modules.get(str(before.target)) if before.op == "call_module" else None
        if len(before.users) > 1 or calls[before.target] > 1 or calls[node.target] > 1:
            continue  # another part of the network reads the layer, or uses one of the two again
        if isinstance(layer, CONVOLUTIONS):
            fused: nn.Module = fuse_conv_bn_eval(layer, norm)
        elif isinstance(layer, nn.Linear):
            fused = fuse_linear_bn_eval(layer, norm)
        else:
            continue
        parent, _, name = str(before.target).rpartition(".")
        setattr(graph.get_submodule(parent), name, fused)
        node.replace_all_uses_with(before)
        graph.graph.erase_node(node)
    graph.delete_all_unused_submodules()
    graph.recompile()
