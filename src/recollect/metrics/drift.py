"""Feature drift: RMSE of drifted and of rectified features against the originals, on a task's test images.

drifted[i][j] = RMSE(f_i(x), f_j(x)),  rectified[i][j] = RMSE(f̂_j(x) from f_i(x), f_j(x)),  x of task j, i > j
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.device import at_least_single

NUM_POINTS = 80


def squared_error(estimate: Tensor, original: Tensor) -> Tensor:
    """Sum of squared differences, on the device."""
    return (at_least_single(estimate) - at_least_single(original)).square().sum()


def rmse(total: float, num_values: int) -> float:
    return float((total / num_values) ** 0.5)


def shown_rows(num: int) -> Tensor:
    """Which of a task's test images are drawn: a few, evenly spread."""
    return torch.linspace(0, num - 1, min(num, NUM_POINTS)).round().long()


def on_principal_axes(original: Tensor, features: Tensor) -> list[list[float]]:
    """Points of features on the two axes along which the original ones vary most, for the picture of drift."""
    centre = original.mean(dim=0)
    axes = torch.linalg.svd(original - centre, full_matrices=False).Vh[:2]
    sign = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()  # as the solver likes, else
    return [[round(value, 4) for value in point] for point in ((features - centre) @ (axes * sign).T).tolist()]
