"""The chain: f̂_N = f_N(x), f̂_{t-1} = r_t(f̂_t, h_t(x)), down to the first task.

With stride s only every s-th task is an anchor: tasks 0, s, 2s, … (0-based). Hop k leads to anchor k, from anchor k+1
or, for the last hop, from wherever the backbone is today. A task between anchors is read in the nearest later domain
available. s = 1 makes every task an anchor, as in the paper.

A task that the backbone is not trained on leaves the feature space where it was: it shares the space of the task before
it and needs no hop. The stride counts spaces, which are as many as tasks where every task moves the backbone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, overload

from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.retrospector import Retrospector


class RetrospectorChain(nn.Module):
    """Retrospectors and their auxiliary networks, grown as tasks arrive.

    >>> import torch
    >>> from recollect.core import AuxiliaryExtractor, GatedRetrospector
    >>> chain = RetrospectorChain(lambda: GatedRetrospector(12, 8, 8), lambda: AuxiliaryExtractor(8))
    >>> for task in range(3):
    ...     chain.begin_task()
    >>> x, f = torch.randn(4, 3, 32, 32), torch.randn(4, 12)
    >>> [estimate.shape[1] for estimate in chain.rewind(x, f)], chain.num_hops_to(0)
    ([12, 12, 12], 2)
    """

    def __init__(
        self, retrospector: Callable[[], Retrospector], auxiliary: Callable[[], nn.Module] | None, stride: int = 1
    ) -> None:
        super().__init__()
        if stride < 1:
            raise ValueError(f"the skip factor must be at least 1, got {stride}")
        self.stride = stride
        self.spaces: list[int] = []  # of each task, the number of tasks before it that moved the backbone
        self.retrospectors = nn.ModuleList()
        self.auxiliaries = nn.ModuleList()
        self.grew_auxiliary_with_hop = False  # then both are trained together
        self._make_retrospector = retrospector
        self._make_auxiliary = auxiliary

    @property
    def num_tasks(self) -> int:
        return len(self.spaces)

    @property
    def num_hops(self) -> int:
        return len(self.retrospectors)

    @property
    def is_at_anchor(self) -> bool:
        """Whether today's space is an anchor, which the next hop will lead to."""
        return self.spaces[-1] % self.stride == 0

    def domain(self, task: int) -> int:
        """The space in which a task is read today: its own, the next anchor, or today's."""
        anchor = -(-self.spaces[task] // self.stride) * self.stride
        return min(anchor, self.spaces[-1])

    def num_hops_to(self, task: int) -> int:
        domain = self.domain(task)
        return 0 if domain == self.spaces[-1] else self.num_hops - domain // self.stride

    def begin_task(self, *, moves: bool = True, auxiliary_with_hop: bool = False) -> None:
        """Grow for one more task: a hop to the last anchor, and the auxiliary network that the next hop will use.

        A hop whose task was no anchor is replaced, since it started from a feature space that is gone. Nothing grows
        for a task that does not move the backbone. Where no auxiliary network was prepared for a hop, as in
        end-to-end training (`auxiliary_with_hop`) and after a first task that did not move the backbone, h_t grows
        together with r_t.
        """
        space = self.spaces[-1] + moves if self.spaces else 0
        self.spaces.append(space)
        self.grew_auxiliary_with_hop = False
        if not moves:
            return
        if space > 0:
            renewed = self.num_hops == -(-space // self.stride)
            self._place(self.retrospectors, self._make_retrospector(), renewed)
            unprepared = auxiliary_with_hop or len(self.auxiliaries) < self.num_hops
            if unprepared and self._make_auxiliary is not None:
                self.grew_auxiliary_with_hop = True
                self._place(self.auxiliaries, self._make_auxiliary(), renewed and auxiliary_with_hop)
        if not auxiliary_with_hop and self.is_at_anchor and self._make_auxiliary is not None:
            self._place(self.auxiliaries, self._make_auxiliary(), renewed=False)

    def _place(self, modules: nn.ModuleList, module: nn.Module, renewed: bool) -> None:
        """Put a new module last, or in the last one's place, beside what is there already."""
        existing = next(self.parameters(), None)
        if existing is not None:
            module = module.to(existing.device)
        if renewed:
            modules[len(modules) - 1] = module
        else:
            modules.append(module)

    def train(self, mode: bool = True) -> Self:
        """Frozen parts stay in evaluation mode, so that a norm or dropout in an old h stays frozen too."""
        super().train(mode)
        for module in (*self.retrospectors, *self.auxiliaries):
            if not any(parameter.requires_grad for parameter in module.parameters()):
                module.eval()
        return self

    @property
    def next_auxiliary(self) -> nn.Module | None:
        """h_{t+1}, still without a retrospector of its own; None when nothing is being prepared."""
        return self.auxiliaries[-1] if len(self.auxiliaries) > self.num_hops else None

    def hop(self, index: int, f: Float[Tensor, "b d"], x: Tensor) -> Float[Tensor, "b d"]:
        """One step back, to the space of anchor `index`."""
        retrospector = self.retrospectors[index]
        h = self.auxiliaries[index](x) if retrospector.uses_auxiliary else None
        return retrospector(f, h)  # type: ignore[no-any-return]

    @overload
    def rewind(self, x: Tensor, f: Float[Tensor, "b d"], to: int) -> Float[Tensor, "b d"]: ...
    @overload
    def rewind(self, x: Tensor, f: Float[Tensor, "b d"], to: None = None) -> list[Float[Tensor, "b d"]]: ...
    def rewind(
        self, x: Tensor, f: Float[Tensor, "b d"], to: int | None = None
    ) -> Float[Tensor, "b d"] | list[Float[Tensor, "b d"]]:
        """Today's features of x carried back to the space of task `to`, or of every task when `to` is None."""
        if to is not None and not 0 <= to < self.num_tasks:
            raise ValueError(f"task {to} is not among the {self.num_tasks} tasks learned (counted from 0)")
        num_hops = self.num_hops if to is None else self.num_hops_to(to)
        estimates = [f]
        for step in range(num_hops):
            estimates.append(self.hop(self.num_hops - 1 - step, estimates[-1], x))
        if to is not None:
            return estimates[-1]
        return [estimates[self.num_hops_to(task)] for task in range(self.num_tasks)]
