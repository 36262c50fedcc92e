"""What RFE warns of: rules that do not suit the stream, and retrospectors that do more harm than good."""

from __future__ import annotations

import warnings

import torch

from recollect.core import RFE, feature_estimation
from recollect.core.identity import Identity
from recollect.core.rfe import warn_if_harmful
from recollect.device import at_least_single
from recollect.methods._rfe_config import RFEConfig
from recollect.nets import Network
from recollect.streams import TaskData, TaskInfo

MAX_IMAGES = 256  # enough to compare two errors


def warn_about_rule(identity: Identity, sizes: list[int], task: TaskInfo) -> None:
    """Rules that rank classes by their within-task probability do not suit every stream."""
    if identity not in ("average", "class-means"):
        return
    remedy = "where the task is unknown, identity='anchored' of new models and runs does not"
    if task.num_classes == 1 and identity == "average":
        warnings.warn(
            "identity='average' cannot rank a task of one class, whose softmax is always 1; where the task is unknown, "
            "identity='anchored' of new models and runs can",
            stacklevel=3,
        )
    elif len({*sizes[: task.index + 1]}) > len({*sizes[: task.index]}) > 0:
        warnings.warn(
            f"identity={identity!r} favours tasks of few classes, and task sizes differ; {remedy}", stacklevel=3
        )


@torch.no_grad()
def warn_about_retrospector(config: RFEConfig, rfe: RFE, network: Network, task: TaskInfo, data: TaskData) -> None:
    """An r_t that was trained too little brings features farther from f_{t-1} than the drift did.

    Compares the mean squared errors of r_t(f_t, x) and of f_t on one batch of training images, without side effects.
    """
    if rfe.anchor is None or config.form == "affine":  # which is not trained
        return
    num = min(len(data), data.batch_size, MAX_IMAGES)
    x = next(data.batches(torch.arange(num) * len(data) // num)).x  # from all classes, which may be in order
    f, then = at_least_single(network.backbone(x)), at_least_single(rfe.anchor(x))
    estimate = at_least_single(rfe.chain.hop(rfe.chain.num_hops - 1, f, x))
    errors = (feature_estimation(estimate, then), feature_estimation(f, then), then.square().mean())
    longer = "epochs or another learning_rate"
    if not config.end_to_end:
        longer = "retrospect_epochs or another retrospect_learning_rate"
    warn_if_harmful(task.index + 1, errors, f"use more {longer}")
