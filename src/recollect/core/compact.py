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
from recollect.device import at_least_single

ROWS = 256  # images that a hop reads at a time


@torch.no_grad()
def compact(chain: RetrospectorChain, x: Tensor, f: Float[Tensor, "n d"], rank: int = 128) -> RetrospectorChain:
    """The chain of affine hops that comes nearest to this one on images x with today's features f.

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
    for before, space in zip([None, *chain.spaces], chain.spaces, strict=False):
        affine.begin_task(moves=before is not None and space > before)
    affine.to(f.device)
    target = compacted = at_least_single(f)
    for index in reversed(range(chain.num_hops)):
        parts = zip(target.split(ROWS), x.split(ROWS), strict=True)
        target = torch.cat([at_least_single(chain.hop(index, part, images)) for part, images in parts])
        hop = affine.retrospectors[index]
        assert isinstance(hop, AffineRetrospector)
        hop.fit(compacted, target)
        compacted = hop(compacted)
    return affine.eval()
