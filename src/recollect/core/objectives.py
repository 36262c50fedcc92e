"""L_FE(s, D, f) = E ||s(x) - f(x)||², averaged over the feature dimension as well as the batch."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.device import at_least_single


def feature_estimation(estimate: Float[Tensor, "b d"], target: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """The one feature-estimation loss; no gradient reaches the target."""
    if estimate.shape != target.shape:
        raise ValueError(f"features of shape {tuple(estimate.shape)} cannot estimate features of {tuple(target.shape)}")
    return F.mse_loss(at_least_single(estimate), at_least_single(target.detach()))
