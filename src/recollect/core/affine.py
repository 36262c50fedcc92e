"""How a feature space moved between two networks: an affine map from old features to new ones of the same images.

new ≈ old + (old - mean) A + b,   A = argmin ‖new - old - b - (old - mean) A‖² + λ‖A‖²

The ridge pulls towards "nothing moved". λ is the one of least leave-one-out error (of some features, if there are
many), which ridge regression has in closed form; the residual's covariance is of leave-one-out errors too, so it is not
too small where images are few. Of images with several views, all views are left out together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from recollect.device import on_host_in_double

RIDGES = tuple(10.0**exponent for exponent in range(-6, 7))
"""λ, in units of the mean squared singular value."""
NUM_DECIDING = 128
"""Features, evenly spaced, whose errors choose λ; it is the same for all of them, and most time would go into it."""
MIN_LEFT = 1e-3
"""Of an image's weight in its own prediction, so that one which decides its own is not divided by zero."""


class AffineMap(NamedTuple):
    """z → W z + b, and the covariance of what it misses; in double precision on the host."""

    weight: Float[Tensor, "d d"]
    bias: Float[Tensor, " d"]
    residual: Float[Tensor, "d d"]


@torch.no_grad()
def fit_affine(old: Float[Tensor, "n d"], new: Float[Tensor, "n d"], views: int = 1) -> AffineMap:
    """The map from old to new features of the same images, of which there may be several views: all images, then again.

    >>> old = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> moved = fit_affine(old, 2 * old + 1)
    >>> moved.weight.round(decimals=3) + 0.0  # no minus before a zero
    tensor([[2., 0., 0.],
            [0., 2., 0.],
            [0., 0., 2.]], dtype=torch.float64)
    """
    z, moved = on_host_in_double(old), on_host_in_double(new) - on_host_in_double(old)
    centre, shift = z.mean(0), moved.mean(0)
    z, moved = z - centre, moved - shift
    left, singular, right = _decompose(z)
    target = left.T @ moved

    def kept_by(ridge: float) -> Float[Tensor, " rank"]:
        squares = singular.square()
        return squares / (squares + ridge * squares.mean() + torch.finfo(z.dtype).tiny)

    def missed_by(kept: Float[Tensor, " rank"], columns: slice) -> Float[Tensor, "n _"]:
        return _leave_out(left, kept, moved[:, columns] - left @ (kept[:, None] * target[:, columns]), views)

    some = slice(None, None, max(1, z.shape[1] // NUM_DECIDING))
    kept = min(map(kept_by, RIDGES), key=lambda kept: float(missed_by(kept, some).square().mean()))
    missed = missed_by(kept, slice(None))
    change = right @ ((kept / singular.clamp(min=torch.finfo(z.dtype).tiny))[:, None] * target)  # [d, d], old to moved
    weight = torch.eye(z.shape[1], dtype=z.dtype) + change.T
    return AffineMap(weight, shift + centre - weight @ centre, missed.T @ missed / len(z))


def _leave_out(left: Tensor, kept: Tensor, residual: Float[Tensor, "n d"], views: int) -> Float[Tensor, "n d"]:
    """What the map misses on each image if all views of that image are left out of its fit: (1 - H)⁻¹ residual."""
    u, r = (rows.unflatten(0, (views, -1)).transpose(0, 1) for rows in (left, residual))  # [images, views, …]
    hat = (u * kept) @ u.mT + 1 / len(left)  # of the views of one image
    if views == 1:
        missed = r / (1 - hat).clamp(min=MIN_LEFT)
    else:
        missed = torch.linalg.solve((1 + MIN_LEFT) * torch.eye(views, dtype=u.dtype) - hat, r)
    errors: Tensor = missed.transpose(0, 1).flatten(0, 1)
    return errors


def _decompose(z: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor, Tensor]:
    """Left singular vectors, singular values and right singular vectors, without directions of no variance."""
    wide = z.shape[0] < z.shape[1]
    squares, vectors = torch.linalg.eigh(z @ z.T if wide else z.T @ z)
    alive = squares > squares.amax() * 1e-10
    singular, vectors = squares[alive].sqrt(), vectors[:, alive]
    return (vectors, singular, z.T @ vectors / singular) if wide else (z @ vectors / singular, singular, vectors)
