"""Retrospective Feature Estimation, for any training loop.

stage 1   L_CE + α L_FE(f_t, D_t, f_{t-1})                    `drift_loss`
stage 2   L_FE(adapter ∘ h_{t+1}, D_t, f_t)                   `distill_loss`
          L_FE(r_t, D_t, f_{t-1}), with h_t frozen            `retrospect_loss`, or `fit_affine` in closed form
reading   f̂_{t-1} = r_t(f̂_t, h_t(x))                          `rewind`
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, overload

from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.auxiliary import AuxiliaryExtractor
from recollect.core.chain import RetrospectorChain
from recollect.core.compact import compact
from recollect.core.frozen import Frozen, Statistics
from recollect.core.objectives import feature_estimation
from recollect.core.retrospector import AffineRetrospector, Form, make_retrospector

MIN_HARM = 0.01
"""The error of a retrospector must be larger than the drift by this share of the features' mean square, for a warning.
A task of one class moves nothing, and there any error is larger."""


class RFE(nn.Module):
    """A chain of retrospectors and the frozen teachers that it learns from.

    Modules grown by `begin_task` are placed on the device of those grown before; on an accelerator call `.to(device)`
    after the first. `auxiliary` may be any function that makes a module with an attribute `dim`.

    >>> import torch
    >>> x, backbone = torch.randn(4, 3, 32, 32), nn.Sequential(nn.AvgPool2d(16), nn.Flatten())
    >>> rfe = RFE(feature_dim=12)
    >>> for task in range(2):
    ...     rfe.begin_task()
    ...     f = backbone(x)
    ...     loss = rfe.drift_loss(x, f) + rfe.distill_loss(x, f)  # and retrospect_loss: minimise them
    ...     rfe.end_task(backbone)
    >>> rfe.rewind(x, backbone(x), to=0).shape  # what the first task's head reads
    torch.Size([4, 12])
    """

    def __init__(
        self,
        feature_dim: int,
        *,
        in_channels: int = 3,
        auxiliary_dim: int = 128,
        projection_dim: int = 128,
        form: Form = "gated",
        bias: bool = True,
        final_relu: bool = False,
        pool: Literal["max", "mean"] = "max",
        auxiliary: Callable[[], nn.Module] | None = None,
        stride: int = 1,
        teacher_statistics: Statistics = "adapting",
        end_to_end: bool = False,
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.teacher_statistics = teacher_statistics
        self.end_to_end = end_to_end
        self._under_way = False
        self._last_errors: tuple[Tensor, Tensor, Tensor] | None = None  # of r_t, without it, and the scale: last batch
        make_auxiliary = auxiliary or (lambda: AuxiliaryExtractor(auxiliary_dim, in_channels, pool))
        self._auxiliary_dim = _dim_of(auxiliary()) if auxiliary else auxiliary_dim
        self.chain = RetrospectorChain(
            lambda: make_retrospector(
                form, feature_dim, self._auxiliary_dim, projection_dim, bias=bias, final_relu=final_relu
            ),
            None if form in ("no-aux", "affine") else make_auxiliary,
            stride,
        )
        self.adapter: nn.Linear | None = None
        self.anchor: Frozen | None = None  # f of the last anchor, the target of the newest hop
        self.recent: Frozen | None = None  # f_{t-1}, where task t-1 was no anchor

    @property
    def num_tasks(self) -> int:
        return self.chain.num_tasks

    @property
    def previous(self) -> Frozen | None:
        """f_{t-1}, or None in the first task."""
        return self.recent or self.anchor

    def begin_task(self, *, moves: bool = True) -> None:
        """Grow r_t and h_{t+1} for one more task; the one before must have ended.

        With `moves=False` nothing grows: the backbone is not trained on this task, so features stay where they were.
        """
        if self._under_way:
            raise RuntimeError(f"task {self.num_tasks} has not ended: call end_task(backbone) before begin_task()")
        self._under_way, self._last_errors = True, None
        existing = next(self.parameters(), None)
        self.chain.begin_task(moves=moves, auxiliary_with_hop=self.end_to_end)
        if moves and self.chain.next_auxiliary is not None:
            self.adapter = nn.Linear(self._auxiliary_dim, self.feature_dim)
        existing = existing if existing is not None else next(self.chain.parameters(), None)
        if existing is not None:
            self.to(existing.device)

    def drift_loss(self, x: Tensor, f: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
        """How far the training backbone's features of x have moved from f_{t-1}(x); zero in the first task."""
        if f.shape[1] != self.feature_dim:
            raise ValueError(f"features have {f.shape[1]} dimensions, RFE was made for feature_dim={self.feature_dim}")
        if self.previous is None:
            return f.new_zeros(())
        return feature_estimation(f, self.previous.teacher_forward(x))

    def distill_loss(self, x: Tensor, f: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
        """How far h_{t+1}, read through the adapter, is from f_t(x); zero where no h is being prepared."""
        h = self.chain.next_auxiliary
        if h is None or self.adapter is None:
            return f.new_zeros(())
        return feature_estimation(self.adapter(h(x)), f)

    def retrospect_loss(
        self, x: Tensor, f: Float[Tensor, "b d"], target: Float[Tensor, "b d"] | None = None
    ) -> Float[Tensor, ""]:
        """How far r_t(f_t(x), x) is from the last anchor's features of x, the `target`; zero in the first task."""
        if self.anchor is None:
            return f.new_zeros(())
        if target is not None:
            return feature_estimation(self.chain.hop(self.chain.num_hops - 1, f, x), target)
        target = self.anchor.teacher_forward(x) if self.end_to_end else self.anchor(x)
        loss = feature_estimation(self.chain.hop(self.chain.num_hops - 1, f, x), target)
        self._last_errors = loss.detach(), feature_estimation(f, target).detach(), target.square().mean()
        return loss

    def fit_affine(self, f: Float[Tensor, "n d"], target: Float[Tensor, "n d"]) -> None:
        """Compute r_t of the affine form, which is not trained, from features f_t and the last anchor's of the task."""
        newest = self.chain.retrospectors[-1]
        if not isinstance(newest, AffineRetrospector):
            raise TypeError(f"only an affine retrospector is computed, this one is a {type(newest).__name__}; train it")
        newest.fit(f, target)

    def compact(self, x: Tensor, f: Float[Tensor, "n d"], rank: int = 128) -> None:
        """Replace the chain, once r_t is trained, by affine maps fitted on images x at hand with today's features f.

        Nothing of an old task is needed. The maps fold into the heads (`fused_heads`), so that reading all tasks costs
        hardly more than the backbone; estimates are less exact. From now on this is an RFE with form="affine" and
        projection_dim=rank, which also loads its state: compute the hops of later tasks with `fit_affine`.
        """
        self.chain, self._last_errors = compact(self.chain, x, f, rank), None

    def distill_parameters(self) -> list[nn.Parameter]:
        """h_{t+1} and its adapter."""
        h = self.chain.next_auxiliary
        return [] if h is None or self.adapter is None else [*h.parameters(), *self.adapter.parameters()]

    def retrospect_parameters(self, *, whole_chain: bool = False) -> list[nn.Parameter]:
        """r_t, with its h_t only if both grew together; with `whole_chain` the earlier retrospectors too."""
        hops = self.chain.num_hops
        if not hops:
            return []
        modules = self.chain.retrospectors if whole_chain else self.chain.retrospectors[-1]
        auxiliary = self.chain.auxiliaries[hops - 1].parameters() if self.chain.grew_auxiliary_with_hop else ()
        return [parameter.requires_grad_(True) for parameter in (*modules.parameters(), *auxiliary)]

    def new_parameters(self) -> list[nn.Parameter]:
        """What the second stage of this task trains."""
        return [*self.distill_parameters(), *self.retrospect_parameters()]

    def end_task(self, backbone: nn.Module, *, keeps_teacher: bool = True) -> None:
        """Keep a frozen copy of the backbone as f_t, freeze the chain, and drop the adapter.

        Without a teacher the next task cannot train the backbone.
        """
        self._under_way = False
        self._warn_if_harmful()
        if keeps_teacher:
            teacher = Frozen(backbone, self.teacher_statistics)
            if self.chain.is_at_anchor:
                self.anchor, self.recent = teacher, None
            else:
                self.recent = teacher
        self.chain.requires_grad_(False).eval()
        self.adapter = None

    def _warn_if_harmful(self) -> None:
        """An r_t that was trained too little leaves features farther from the earlier ones than the drift did."""
        if self._last_errors is None:
            return
        remedy = "train new_parameters() for more steps or with another learning rate"
        warn_if_harmful(self.num_tasks, self._last_errors, remedy)

    @overload
    def rewind(self, x: Tensor, f: Float[Tensor, "b d"], to: int) -> Float[Tensor, "b d"]: ...
    @overload
    def rewind(self, x: Tensor, f: Float[Tensor, "b d"], to: None = None) -> list[Float[Tensor, "b d"]]: ...
    def rewind(
        self, x: Tensor, f: Float[Tensor, "b d"], to: int | None = None
    ) -> Float[Tensor, "b d"] | list[Float[Tensor, "b d"]]:
        """Today's features of x carried back to the space of task `to` (0-based), or of every task."""
        return self.chain.rewind(x, f, to)


def warn_if_harmful(task: int, errors: tuple[Tensor, Tensor, Tensor], remedy: str) -> None:
    """Warn if a retrospector's mean squared error is clearly larger than the error without it; the third is the scale.

    Tasks are counted from 1.
    """
    error, drift, scale = map(float, errors)
    if error - drift > MIN_HARM * scale:
        warnings.warn(
            f"the retrospector of task {task} leaves features farther from the earlier ones than they are without it "
            f"(mean squared error {error:.3g}, without it {drift:.3g}); {remedy}",
            stacklevel=4,
        )


def _dim_of(auxiliary: nn.Module) -> int:
    dim = getattr(auxiliary, "dim", None)
    if not isinstance(dim, int):
        raise ValueError(f"an auxiliary network has an attribute `dim`, its number of outputs; {auxiliary} has {dim!r}")
    return dim
