"""Nearest class mean on frozen features (the classifier of iCaRL, Rebuffi et al. 2017): argmax_c cos(f(x), μ_c)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from recollect.methods._discriminant import FrozenConfig, LinearLearner
from recollect.methods.learner import Method, Setup
from recollect.nets import Network
from recollect.streams import TaskInfo


class NCM(LinearLearner[FrozenConfig]):
    """Stores the sum of each class's normalised features."""

    sums: Tensor

    def __init__(self, network: Network, config: FrozenConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        self.register_buffer("sums", self.class_weights.clone())

    def is_trained_on(self, task: TaskInfo) -> bool:
        return self.config.adapt and task.index == 0

    def grow(self, num_classes: int) -> None:
        super().grow(num_classes)
        self.sums = F.pad(self.sums, (0, 0, 0, num_classes))

    def transform(self, f: Tensor) -> Tensor:
        return F.normalize(f, dim=1)

    def collect(self, z: Tensor, labels: Tensor) -> None:
        self.sums.index_add_(0, labels, z)

    def refresh(self) -> None:
        self.class_weights.copy_(F.normalize(self.sums, dim=1))


METHODS = {
    "ncm": Method(
        NCM,
        FrozenConfig(),
        "nearest class mean on frozen features",
        cost=0.1,
        contents={
            "sums": "sums of each class's features",
            "class_weights": "class means",
            "class_biases": "class means",
        },
        colour="#808080",
        order=122,
        marker="o",
    )
}
