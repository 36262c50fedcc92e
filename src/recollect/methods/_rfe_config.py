"""The options of RFE in all its forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from recollect.core.components import MAX_COMPONENTS
from recollect.core.frozen import STATISTICS, Statistics
from recollect.core.identity import IDENTITIES, Identity
from recollect.core.retrospector import FORMS, Form
from recollect.errors import UserError
from recollect.streams import OMITTED

MAX_DIM = 8192
CONTENTS = {
    "rule": "class means and covariances",
    "past": "memory of RFE",
    "retrospectors": "retrospector",
    "auxiliaries": "auxiliary network",
    "adapter": "adapter of the second stage",
    **dict.fromkeys(("anchor", "recent", "before", "first"), "frozen copy of the network"),
}
"""What its tensors are, for `recollect audit`."""


@dataclass(frozen=True, kw_only=True)
class RFEConfig:
    alpha: float = 1.0
    """Weight of the feature-estimation loss in the first stage, α."""
    keep: Literal["none", "previous", "reservoir"] = "none"
    """Samples kept: none (RFE), of the last tasks (RFE-P), a reservoir over all tasks (RFE-B)."""
    memory: int = 500
    """Total number of samples kept, |P| or |B|."""
    last_tasks: int = 1
    """RFE-P: number of last tasks whose samples are kept, k."""
    memory_target: Literal["view", "stored"] = "view"
    """Target of a memory sample: the teacher on the same view, or the stored feature (the authors' code)."""
    form: Form = "gated"
    """Form of the retrospector."""
    end_to_end: bool = False
    """Train r_t and h_t together with f_t instead of in a second stage."""
    auxiliary_dim: int = 128
    """Output dimension of the auxiliary network, dim(h)."""
    projection_dim: int = 128
    """Output dimension of the projections, dim(a^f) = dim(a^h); of the affine form the rank."""
    bias: bool = True
    """Biases in the retrospector; the paper's parameter counts have none."""
    final_relu: bool = True
    """Apply ReLU to the output of r if the backbone's features are non-negative; not in the paper's equation."""
    pool: Literal["max", "mean"] = "max"
    """Pooling of the input to 16x16 before h."""
    stride: int = 1
    """Number of tasks per permanent retrospector, s."""
    teacher_statistics: Statistics = "adapting"
    """BatchNorm of f_{t-1} beside the training f_t: frozen, batch, adapting."""
    identity: Identity = "average"
    """How classes of all tasks are ranked: average (the paper), class-means, forward, anchored, lda."""
    shrinkage: float = 0.2
    """Weight of the identity in the covariance of forward, anchored and lda, from 0 to 1."""
    head_weight: float = 0.5
    """Weight of the heads' log-probabilities in the scores of forward, anchored and lda, λ."""
    components: int = field(default=0, metadata=OMITTED)
    """Principal components that anchored stores of each class, at most; a class has one for every ten images."""
    correct_drift: bool = field(default=True, metadata=OMITTED)
    """Whether Gaussians of forward, anchored and lda follow the drift of features; false for ablations."""
    averaging: bool = field(default=False, metadata=OMITTED)
    """After each task, continue with the mean of the weights that tasks have ended with; needs form=affine."""
    mirror: bool = field(default=False, metadata=OMITTED)
    """anchored: the first task's network reads images mirrored, where they are mirrored in training too."""
    gentle: Literal["never", "always", "pretrained"] = "never"
    """Whether to initialise heads as linear discriminants and freeze BatchNorm statistics."""
    retrospect_epochs: int = 0
    """Epochs of the second stage; 0 for the same number as in the first."""
    retrospect_learning_rate: float = 5e-3
    """Learning rate of the second stage."""
    views: int = 4
    """Cached views per image in the second stage, 0 for a new view in every step; if gentle, also in statistics."""
    views_megabytes: int = 1024
    """Memory limit for the features of cached views, in MB; as many views as fit are cached."""

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("keep", self.keep, ("none", "previous", "reservoir")),
            ("memory_target", self.memory_target, ("view", "stored")),
            ("form", self.form, FORMS),
            ("pool", self.pool, ("max", "mean")),
            ("teacher_statistics", self.teacher_statistics, STATISTICS),
            ("identity", self.identity, IDENTITIES),
            ("gentle", self.gentle, ("never", "always", "pretrained")),
        ):
            if value not in choices:
                raise UserError(f"{name} is one of {', '.join(choices)}; got {value!r}")
        for name in ("memory", "last_tasks", "auxiliary_dim", "projection_dim", "stride"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be positive, got {getattr(self, name)}")
        if max(self.auxiliary_dim, self.projection_dim) > MAX_DIM:
            raise UserError(
                f"auxiliary_dim and projection_dim are at most {MAX_DIM}, "
                f"got {self.auxiliary_dim} and {self.projection_dim}"
            )
        if self.auxiliary_dim % 2:
            raise UserError(f"auxiliary_dim must be even, got {self.auxiliary_dim}")
        if self.stride > 1 and self.memory_target == "stored":
            raise UserError(
                "stored features of tasks between anchors have no space to be compared in; with stride above 1 "
                "use memory_target=view"
            )
        if not 0 <= self.shrinkage <= 1 or self.head_weight < 0:
            raise UserError(
                "shrinkage is a share from 0 to 1 and head_weight cannot be negative, "
                f"got {self.shrinkage} and {self.head_weight}"
            )
        if not 0 <= self.components <= MAX_COMPONENTS:
            raise UserError(f"components is a number from 0 to {MAX_COMPONENTS}, got {self.components}")
        if self.averaging and self.form != "affine":
            raise UserError(
                f"averaging=true moves f_t once it is trained, and a retrospector of form={self.form} is trained to "
                "start from f_t; use form=affine or averaging=false"
            )
        if self.end_to_end and self.form == "affine":
            raise UserError("an affine retrospector is computed when a task ends; with end_to_end use another form")
        if self.end_to_end and self.alpha == 0:
            raise UserError("end to end only alpha trains the retrospectors; give it a positive alpha, got 0")
        if self.views < 0 or self.views_megabytes < 1:
            raise UserError(
                "views cannot be negative and views_megabytes must be positive, "
                f"got {self.views} and {self.views_megabytes}"
            )
        if self.alpha < 0 or self.retrospect_epochs < 0 or self.retrospect_learning_rate <= 0:
            raise UserError("alpha and retrospect_epochs cannot be negative, retrospect_learning_rate must be positive")
