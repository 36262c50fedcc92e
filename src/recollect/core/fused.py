"""The chain read fast: a copy of its weights in which all hops that can be taken together are.

A chain of affine hops is an affine map, and the heads behind it are heads that read today's features.

All auxiliary networks see the same pooled image, so their first convolutions are one product over its patches and
their second ones one batched product; so are A_h h and B h of all hops. G_f and G_h of a hop are one product. Only
f̂_{t-1} = r_t(f̂_t, h_t(x)) itself goes hop by hop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core.auxiliary import POOLED_SIZE, AuxiliaryExtractor
from recollect.core.chain import RetrospectorChain
from recollect.core.retrospector import AffineRetrospector, GatedRetrospector

PART = 32  # images whose auxiliary features are computed at a time, so that what lies between stays in the cache
Rewind = Callable[[Tensor, Tensor], list[Tensor]]


def fused(chain: RetrospectorChain, dtype: torch.dtype | None = None) -> Rewind:
    """What `chain.rewind(x, f)` gives for every task, faster and read-only; other forms than gated are read plainly.

    So are subclasses, whose `forward` may be their own: the types are compared exactly.
    """
    hops = [r for r in chain.retrospectors if type(r) is GatedRetrospector]
    auxiliaries = [h for h in chain.auxiliaries[: chain.num_hops] if type(h) is AuxiliaryExtractor]
    if not hops or len(hops) != chain.num_hops or len(auxiliaries) != chain.num_hops:
        return chain.rewind
    return _FusedChain(chain, hops, auxiliaries, dtype)


@torch.no_grad()
def fused_heads(chain: RetrospectorChain, heads: Sequence[nn.Module]) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of all heads on today's features, those of old tasks behind the chain; None if it is not affine.

    Heads of tasks that are not learned yet read today's features.
    """
    hops = [r for r in chain.retrospectors if type(r) is AffineRetrospector]
    if not hops or len(hops) != chain.num_hops:
        return None
    depths = [chain.num_hops_to(task) if task < chain.num_tasks else 0 for task in range(len(heads))]
    weights: dict[int, Tensor] = {}
    biases: dict[int, Tensor] = {}
    example = heads[0].get_parameter("weight")
    product, offset = torch.eye(example.shape[1]).to(example), example.new_zeros(example.shape[1])
    for depth in range(chain.num_hops + 1):  # f̂ = f product + offset
        for task in (task for task, needed in enumerate(depths) if needed == depth):
            weight, bias = _weight_and_bias(heads[task])
            weights[task], biases[task] = weight @ product.T, bias + weight @ offset
        if depth < chain.num_hops:
            r = hops[-1 - depth]
            product, offset = product + product @ r.down @ r.up, offset + offset @ r.down @ r.up + r.bias
    tasks = range(len(heads))
    return torch.cat([weights[task] for task in tasks]), torch.cat([biases[task] for task in tasks])


class _FusedChain:
    def __init__(
        self,
        chain: RetrospectorChain,
        hops: Sequence[GatedRetrospector],
        auxiliaries: Sequence[AuxiliaryExtractor],
        dtype: torch.dtype | None,
    ) -> None:
        def joined(*layers: nn.Module) -> tuple[Tensor, Tensor]:
            """Biases and transposed weights of layers that read the same input: [outputs], [inputs, outputs].

            The inputs of a convolution are the channels of its patch's first position, of its second, and so on.
            """
            weights, biases = zip(*map(_weight_and_bias, layers), strict=True)
            weight = torch.cat([(w.movedim(1, -1) if w.ndim == 4 else w).flatten(1) for w in weights]).T
            return torch.cat(biases).detach().to(dtype), weight.detach().to(dtype).contiguous()

        def stacked(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            biases, weights = zip(*pairs, strict=True)
            return torch.stack(biases)[:, None], torch.stack(weights)

        self.depths = [chain.num_hops_to(task) for task in range(chain.num_tasks)]
        self.shrink = auxiliaries[0].shrink
        self.first = joined(*(h.layers[0] for h in auxiliaries))
        self.second = stacked([joined(h.layers[3]) for h in auxiliaries])
        self.from_h = stacked([joined(r.project_h, r.expand_h) for r in hops])
        self.from_f = [joined(r.project_f) for r in hops]
        self.gates = [joined(r.gate_f, r.gate_h) for r in hops]
        self.finals = [r.final for r in hops]

    def __call__(self, x: Tensor, f: Tensor) -> list[Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            h = torch.cat([self._auxiliary(part) for part in x.split(PART)], dim=1)
            biases, weights = self.from_h
            projected, expanded = torch.baddbmm(biases, h, weights).split([len(self.from_f[0][0]), f.shape[1]], dim=2)
            a_h, b_h = projected.unbind(), expanded.unbind()
            estimates = [f]
            f = f.to(weights.dtype)
            for hop in range(len(self.finals) - 1, -1, -1):
                bias, weight = self.from_f[hop]
                q = torch.addmm(bias, f, weight).mul_(a_h[hop])
                bias, weight = self.gates[hop]
                gate_f, gate_h = torch.addmm(bias, q, weight).sigmoid_().chunk(2, dim=1)
                f = self.finals[hop]((gate_f * f).addcmul_(gate_h, b_h[hop]))
                estimates.append(f)
        return [estimates[depth] for depth in self.depths]

    def _auxiliary(self, x: Tensor) -> Tensor:
        """h of every hop: [hops, b, m]. Convolutions are products over patches; ReLU waits until after the pooling."""
        biases, weights = self.second
        hops, b = len(weights), len(x)
        bias, weight = self.first
        patches = _patches(self._pooled(x).to(weight.dtype).movedim(1, -1))  # [b, 8, 8, 3, 3, c]
        x = torch.addmm(bias, patches.flatten(3).flatten(0, 2), weight).unflatten(0, (b, 8, 8))
        x = _block_max(_block_max(x, 1, 2), 2, 2).relu_()  # [b, 4, 4, hops * channels]
        patches = _patches(x).unflatten(5, (hops, -1)).movedim(5, 0)  # [hops, b, 2, 2, 3, 3, channels]
        x = torch.baddbmm(biases, patches.flatten(4).flatten(1, 3), weights).unflatten(1, (b, 4))
        return _block_max(x, 2, 4).squeeze(2).relu_()

    def _pooled(self, x: Tensor) -> Tensor:
        """To 16x16, by block maxima where the blocks are equal."""
        height, width = x.shape[2:]
        if isinstance(self.shrink, nn.AdaptiveMaxPool2d) and not height % POOLED_SIZE and not width % POOLED_SIZE:
            return _block_max(_block_max(x, 2, height // POOLED_SIZE), 3, width // POOLED_SIZE)
        return self.shrink(x)  # type: ignore[no-any-return]


def _patches(x: Tensor) -> Tensor:
    """What each position of a 3x3 convolution of stride 2 sees: [b, height, width, c] to [b, h, w, 3, 3, c]."""
    return F.pad(x, (0, 0, 1, 0, 1, 0)).unfold(1, 3, 2).unfold(2, 3, 2).movedim(3, 5)


def _block_max(x: Tensor, dim: int, size: int) -> Tensor:
    """Maxima of blocks of `size` neighbours along a dimension; pooling kernels are slow on so few positions."""
    blocks: tuple[Tensor, ...] = x.unflatten(dim, (-1, size)).unbind(dim + 1)
    largest = blocks[0]
    for other in blocks[1:]:
        largest = torch.maximum(largest, other)
    return largest


def _weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor]:
    weight = layer.get_parameter("weight")
    bias = layer.bias if isinstance(layer.bias, Tensor) else weight.new_zeros(len(weight))
    return weight, bias
