"""RFE's rule for unknown tasks at work: what it is shown when a task ends, and what it reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from recollect.core import Frozen, Lesson, Reading, RetrospectorChain, average, folded, make_rule
from recollect.device import Rows, at_least_single
from recollect.methods._heads import mirror, read_features
from recollect.methods._rfe_config import RFEConfig
from recollect.reading import read_batches
from recollect.streams import Batch, TaskData, TaskInfo

MAX_VIEWS = 40_000  # of all images of a task, whose features are held at a time
Ranking = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
"""From estimates in each task's space and logits of each head to scores of all classes."""
Evidence = Callable[[Tensor, Tensor], Ranking]
"""From images and today's features to the ranking of their classes."""


class Anchor(Frozen):
    """The network after the first task, which is read at inference too; other frozen copies are teachers alone."""


class TaskIdentity(nn.Module):
    """The rule, the network after the first task (`anchored`), and the network before the current one."""

    def __init__(
        self, config: RFEConfig, feature_dim: int, image_shape: tuple[int, int, int], *, mirrors: bool
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.is_anchored, self.corrects_drift = config.identity == "anchored", config.correct_drift
        self.mirrors = config.mirror and mirrors and self.is_anchored  # mirrored digits would be no digits
        self.rule = make_rule(
            config.identity,
            feature_dim,
            stride=config.stride,
            shrinkage=config.shrinkage,
            head_weight=config.head_weight,
            num_components=config.components,
        )
        self.first: Anchor | None = None
        self.before = nn.ModuleDict()
        self.is_frozen = True
        self._moves = True

    def begin_task(self, task: TaskInfo, backbone: nn.Module, chain: RetrospectorChain, *, moves: bool) -> None:
        """Called before anything grows for the task; `moves` tells whether the backbone is trained on it."""
        self.before.clear()
        if task.index and moves:
            if self.is_anchored and self.first is None:
                self.first = Anchor(backbone)
            if self.rule.follows_drift and self.corrects_drift:
                self.before.update({"backbone": Frozen(backbone), "chain": Frozen(chain)})
        self.is_frozen, self._moves = self.is_frozen and not moves, moves
        self.rule.grow(task.num_classes)

    @torch.no_grad()
    def end_task(
        self,
        task: TaskInfo,
        first_unit: int,
        data: TaskData,
        backbone: nn.Module,
        chain: RetrospectorChain,
        views: int = 1,
    ) -> Lesson | None:
        """Show the rule `views` views of the task's images, read by the network of today and of before.

        A network that was trained on an image separates it too well; other views of it tell more of images to come.
        Returns what the rule was shown.
        """
        if not self.rule.learns:
            return None
        views = max(1, min(views, MAX_VIEWS // len(data)))
        before = None
        if self.before:
            previous, old = (self.before[name].module for name in ("backbone", "chain"))
            assert isinstance(previous, nn.Module)
            assert isinstance(old, RetrospectorChain)
            before = self._read_all(data, previous, old, views, reads_first=False)
        today = chain.spaces[-1]
        moving = [earlier for earlier in range(task.index) if chain.domain(earlier) == today] if self.before else []
        labels = (data.labels - first_unit).repeat(views)
        lesson = Lesson(labels, self._read_all(data, backbone, chain, views), before, views, self._moves, moving)
        self.rule.learn(lesson)
        return lesson

    @torch.no_grad()
    def add(self, first_unit: int, data: TaskData, backbone: nn.Module, chain: RetrospectorChain) -> Lesson:
        """Count further images of the newest task in what the rule stores; returns what it was shown."""
        lesson = Lesson(data.labels - first_unit, self._read_all(data, backbone, chain))
        self.rule.add(lesson)
        return lesson

    def _read_all(
        self, data: TaskData, backbone: nn.Module, chain: RetrospectorChain, views: int = 1, *, reads_first: bool = True
    ) -> Reading:
        """All views of all images; the first task's network reads them unaugmented, if at all, mirrored if asked."""
        read = folded(backbone, self.image_shape)
        f = Rows(views * len(data))
        estimates: dict[int, Rows] = defaultdict(lambda: Rows(views * len(data)))

        def read_all(batch: Batch) -> tuple[Tensor, Sequence[Tensor]]:
            today = at_least_single(read(batch.x))
            return today, chain.rewind(batch.x, today) if self.rule.needs_estimates else []

        for view in range(views):
            for today, rewound in read_batches(read_all, data.batches(view=view), data.device):
                f.add(today)
                for space, estimate in enumerate(rewound):
                    estimates[space].add(at_least_single(estimate))
        at_first = mirrored = None
        if self.first is not None and reads_first:
            at_first = read_features(self.first.module, self.image_shape, data)
        if self.mirrors and reads_first:
            anchor = backbone if self.first is None else self.first.module
            mirrored = read_features(anchor, self.image_shape, data, mirrored=True)
        return Reading(f.tensor, [rows.tensor for rows in estimates.values()], at_first, self.is_frozen, mirrored)

    @torch.no_grad()
    def draw(self, units: Tensor, sizes: Sequence[int], generator: torch.Generator) -> Callable[[float], Tensor] | None:
        """Scores of all classes for pseudo-features of these units, by the factor of their deviation.

        Heads are left out: they read the images of a task, which are gone. None if the rule stores no Gaussians.
        """
        drawn = self.rule.draw(units, generator, is_frozen=self.is_frozen, has_first=self.first is not None)
        if drawn is None:
            return None
        logits = [torch.zeros(len(units), size, device=units.device) for size in sizes]
        return lambda factor: self.rule.evidence(drawn(factor), logits)

    def reader(self, dtype: torch.dtype | None) -> Evidence:
        """`evidence`, with the first task's network folded."""
        first = None if self.first is None else folded(self.first.module, self.image_shape, dtype)
        return lambda x, f: self._ranking(f, None if first is None else self._read_first(first, x))

    def evidence(self, x: Tensor, f: Tensor) -> Ranking:
        """Ranks the classes of all tasks that have begun; where none has, fixed heads are averaged."""
        return self._ranking(f, None if self.first is None else self._read_first(self.first, x))

    def _read_first(self, first: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return at_least_single(first(mirror(x) if self.mirrors else x))

    def _ranking(self, f: Tensor, at_first: Tensor | None) -> Ranking:
        def rank(estimates: Sequence[Tensor], logits: Sequence[Tensor]) -> Tensor:
            if not estimates:
                return average(logits[:1])
            return self.rule.evidence(Reading(f, estimates, at_first, self.is_frozen), logits)

        return rank
