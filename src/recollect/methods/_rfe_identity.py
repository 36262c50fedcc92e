"""RFE's rule for unknown tasks at work: what it is shown when a task ends, and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from recollect.core import Discriminant, Frozen, Lesson, Reading, RetrospectorChain, average, folded, make_rule
from recollect.methods._rfe_config import RFEConfig
from recollect.precision import at_least_single
from recollect.streams import TaskData, TaskInfo

HELD_OUT = 5  # every so many images, to find a head's temperature
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class TaskIdentity(nn.Module):
    """The rule, the network before the first task (`anchored`), and the network before the current one."""

    def __init__(self, config: RFEConfig, backbone: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.rule = make_rule(
            config.identity,
            feature_dim,
            stride=config.stride,
            shrinkage=config.shrinkage,
            head_weight=config.head_weight,
        )
        self.origin = Frozen(backbone) if config.identity == "anchored" else None
        self.before = nn.ModuleDict()

    def begin_task(self, task: TaskInfo, backbone: nn.Module, chain: RetrospectorChain) -> None:
        """Called before anything grows for the task."""
        if task.index and self.rule.follows_drift:
            self.before.update({"backbone": Frozen(backbone), "chain": Frozen(chain)})
        self.rule.grow(task.num_classes)

    @torch.no_grad()
    def end_task(
        self, task: TaskInfo, first_unit: int, data: TaskData, backbone: nn.Module, chain: RetrospectorChain
    ) -> None:
        """Show the rule the task's images, read by the network of today and of before."""
        if not self.rule.learns:
            return
        labels = torch.cat([batch.y for batch in data.batches()])
        before = None
        if self.before:
            old = self.before["chain"].module
            assert isinstance(old, RetrospectorChain)
            before = self._read_all(data, self.before["backbone"], old)
        moving = [earlier for earlier in range(task.index) if chain.domain(earlier) == task.index]
        self.rule.learn(Lesson(labels - first_unit, self._read_all(data, backbone, chain), before, moving))

    def _read_all(self, data: TaskData, backbone: nn.Module, chain: RetrospectorChain) -> Reading:
        parts = []
        for batch in data.batches():
            f = at_least_single(backbone(batch.x))
            z = self._concatenate(batch.x, f, self.origin)
            parts.append(Reading(z, [at_least_single(estimate) for estimate in chain.rewind(batch.x, f)]))
        spaces = zip(*(part.estimates for part in parts), strict=True)
        return Reading(torch.cat([part.z for part in parts]), [torch.cat(space) for space in spaces])

    def _concatenate(self, x: Tensor, f: Tensor, origin: Callable[[Tensor], Tensor] | None) -> Tensor:
        """z: today's features, after the origin's where there is one."""
        return f if origin is None else torch.cat([at_least_single(origin(x)), at_least_single(f)], dim=1)

    def reader(
        self, image_shape: tuple[int, int, int], dtype: torch.dtype | None
    ) -> Callable[[Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]:
        """`evidence`, with the origin folded."""
        origin = None if self.origin is None else folded(self.origin.module, image_shape, dtype)
        return lambda x, f, estimates, logits: self.evidence(x, f, estimates, logits, origin)

    def evidence(
        self,
        x: Tensor,
        f: Tensor,
        estimates: Sequence[Tensor],
        logits: Sequence[Tensor],
        origin: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Scores of the classes of all tasks that have begun; where none has, fixed heads are averaged."""
        if not estimates:
            return average(logits[:1])
        return self.rule.evidence(Reading(self._concatenate(x, f, origin or self.origin), estimates), logits)


@torch.no_grad()
def discriminant_head(f: Tensor, labels: Tensor, num_classes: int, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of a head that starts as the discriminant of features f, as sure as a fifth held out allows."""
    held = torch.arange(len(f), device=f.device) % HELD_OUT == 0
    temperature = TEMPERATURES[-1]
    if bool(held.any()) and not bool(held.all()):
        scores = _fit(f[~held], labels[~held], num_classes, shrinkage)(f[held])
        losses = [nn.functional.cross_entropy(scores / t, labels[held]) for t in TEMPERATURES]
        temperature = TEMPERATURES[int(torch.stack(losses).argmin())]
    whole = _fit(f, labels, num_classes, shrinkage)
    return whole.weight / temperature, whole.bias / temperature


def _fit(f: Tensor, labels: Tensor, num_classes: int, shrinkage: float) -> Discriminant:
    discriminant = Discriminant(f.shape[1], shrinkage).to(f.device)
    discriminant.grow(num_classes)
    discriminant.add(f, labels)
    discriminant.refresh()
    return discriminant
