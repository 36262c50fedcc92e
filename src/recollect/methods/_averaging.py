"""Continue with the mean of the weights that tasks end with: θ̄_t = θ̄_{t-1} + (θ_t - θ̄_{t-1}) / t.

Task t starts from θ̄_{t-1} and trains it to θ_t; t counts the tasks that train the backbone. No task has the last
word, and features move less with every task. The head of task t was trained on features of θ_t; an affine map A from
those of θ̄_t carries it along: w_t ∘ A. BatchNorm statistics are averaged like weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.core import average_weights, fit_affine
from recollect.device import on_host_in_double
from recollect.methods._heads import read_features
from recollect.streams import TaskData


@torch.no_grad()
def continue_with_mean(
    backbone: nn.Module,
    head: nn.Module,
    before: nn.Module,
    share: float,
    image_shape: tuple[int, int, int],
    data: TaskData,
) -> Tensor:
    """Keep `share` of the way from the weights before the task to the trained ones; the head reads the new features.

    Returns these features of the task's images.
    """
    trained = read_features(backbone, image_shape, data)
    if share == 1:
        return trained
    average_weights(backbone, before, share)
    f = read_features(backbone, image_shape, data)
    assert isinstance(head, nn.Linear)
    weight, bias, _ = fit_affine(f, trained)
    w = on_host_in_double(head.weight)
    head.bias.copy_(on_host_in_double(head.bias) + w @ bias)
    head.weight.copy_(w @ weight)
    return f
