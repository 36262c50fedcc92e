"""Feature drift: RMSE of drifted and of rectified features against the originals, on a task's test images.

drifted[i][j] = RMSE(f_i(x), f_j(x)),  rectified[i][j] = RMSE(f̂_j(x) from f_i(x), f_j(x)),  x of task j, i > j
"""

from __future__ import annotations

from torch import Tensor

from recollect.precision import at_least_single


def squared_error(estimate: Tensor, original: Tensor) -> Tensor:
    """Sum of squared differences, on the device."""
    return (at_least_single(estimate) - at_least_single(original)).square().sum()


def rmse(total: float, num_values: int) -> float:
    return float((total / num_values) ** 0.5)
