"""Temperature scaling: the one number that log-probabilities are divided by to calibrate them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def fit_temperature(
    log_probabilities: Tensor,
    labels: Tensor,
    owner: Tensor | None = None,
    shares: Tensor | None = None,
) -> float:
    """The temperature with the smallest cross-entropy: a search on a grid from 0.2 to 20.

    `owner` gives the class of each unit, and `shares` the log of its share; units of one class are summed. Label
    smoothing of 1 / (n + 2), the rule of succession, keeps a few images without a mistake from making the model certain
    of everything.
    """
    num_units = log_probabilities.shape[1]
    if not len(labels) or num_units < 2:
        return 1.0
    grid, smoothing = torch.logspace(-0.7, 1.3, 81), 1 / (len(labels) + 2)
    owner = torch.arange(num_units) if owner is None else owner
    members = F.one_hot(owner, num_units).float()
    shares = torch.zeros(num_units) if shares is None else shares
    losses = []
    for temperature in grid:
        logs = ((log_probabilities / temperature + shares).softmax(1) @ members).clamp(min=1e-30).log()
        losses.append(F.cross_entropy(logs, owner[labels], label_smoothing=smoothing))
    return float(grid[int(torch.stack(losses).argmin())])
