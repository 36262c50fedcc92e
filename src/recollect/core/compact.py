"""A trained chain as a chain of affine maps, which costs nothing to read: it folds into the heads (core/fused.py).

Hop by hop, from today's space down, on images at hand: the affine map starts from the compacted estimate and aims at
the estimate of the trained chain, so that errors do not add up. No image of an earlier task is needed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from recollect.core.chain import RetrospectorChain
from recollect.core.retrospector import AffineRetrospector

ROWS = 256  # images that a hop reads at a time


@torch.no_grad()
def compact(chain: RetrospectorChain, x: Tensor, f: Float[Tensor, "n d"], rank: int = 128) -> RetrospectorChain:
    """A chain of affine hops that follows this one on images x with today's features f.

    >>> from recollect.core import AuxiliaryExtractor, GatedRetrospector
    >>> gated = RetrospectorChain(lambda: GatedRetrospector(6, 4, 4), lambda: AuxiliaryExtractor(4))
    >>> for task in range(3):
    ...     gated.begin_task()
    >>> x, f = torch.randn(64, 3, 16, 16), torch.randn(64, 6)
    >>> affine = compact(gated, x, f)
    >>> affine.num_hops, sum(parameter.numel() for parameter in affine.parameters())
    (2, 0)
    """
    affine = RetrospectorChain(lambda: AffineRetrospector(f.shape[1], rank), None, chain.stride)
    for space, before in zip(chain.spaces, (-1, *chain.spaces), strict=False):
        affine.begin_task(moves=space > before)
    affine.to(f)
    was_training = chain.training
    chain.eval()
    target = compacted = f
    for index in reversed(range(chain.num_hops)):
        target = torch.cat([chain.hop(index, *part) for part in zip(target.split(ROWS), x.split(ROWS), strict=True)])
        hop = affine.retrospectors[index]
        assert isinstance(hop, AffineRetrospector)
        hop.fit(compacted, target)
        compacted = hop(compacted)
    chain.train(was_training)
    return affine.eval()
