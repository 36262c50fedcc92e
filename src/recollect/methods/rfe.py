"""Retrospective Feature Estimation: RFE, RFE-P, RFE-B, its variants, and end-to-end training.

fit          L_CE(w_t ∘ f_t, D_t) + α L_FE(f_t, D_t ∪ S, f_{t-1})
retrospect   L_FE(adapter ∘ h_{t+1}, D_t, f_t);  L_FE(r_t, D_t ∪ S, f_{t-1})
end to end   L_CE + α L_FE(r_t, D_t ∪ S, f_{t-1}), gradient through r_t into f_t, and nothing else

S is nothing (RFE), samples of the last k tasks (RFE-P) or a reservoir over all tasks (RFE-B).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.core import RFE, feature_estimation, folded, fused, fused_heads
from recollect.core.auxiliary import POOLED_SIZE
from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods._averaging import continue_with_mean
from recollect.methods._heads import read_features, start_heads
from recollect.methods._rfe_config import CONTENTS, RFEConfig
from recollect.methods._rfe_identity import Ranking, TaskIdentity
from recollect.methods._rfe_memory import Recall, RFEMemory
from recollect.methods._rfe_warnings import warn_about_retrospector, warn_about_rule
from recollect.methods.learner import (
    CachedFunctions,
    Learner,
    Method,
    Parameters,
    Phase,
    Reader,
    Scores,
    Setup,
    Update,
    Validation,
    num_correct,
    num_parameters,
)
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo

FIT_SHARE = 0.7  # of a task's time, if that is limited


class RFELearner(Learner[RFEConfig]):
    """The heads of old tasks stay as they were; the chain brings today's features to them."""

    one_unit_per_class = False

    def __init__(self, network: Network, config: RFEConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        if config.form not in ("no-aux", "affine") and min(setup.image_shape[1:]) < POOLED_SIZE:
            raise UserError(
                f"RFE needs images of at least {POOLED_SIZE} pixels, got {setup.image_shape[1:]}; enlarge them"
            )
        self.rfe = RFE(
            network.feature_dim,
            in_channels=setup.image_shape[0],
            auxiliary_dim=config.auxiliary_dim,
            projection_dim=config.projection_dim,
            form=config.form,
            bias=config.bias,
            final_relu=config.final_relu and bool(network.backbone.nonnegative),
            pool=config.pool,
            stride=config.stride,
            teacher_statistics="frozen" if self.is_gentle or config.averaging else config.teacher_statistics,
            end_to_end=config.end_to_end,
        )
        self.identity = TaskIdentity(config, network.feature_dim, setup.image_shape, mirrors=setup.flips)
        self.past = None if config.keep == "none" else RFEMemory(config, network.feature_dim, setup.image_shape)
        self.adapts = True
        """Whether the backbone is trained on the task that begins next; else it gets a head and statistics alone."""
        self._num_adapted = 0  # tasks that it was or is trained on

    def begin_task(self, task: TaskInfo) -> None:
        self._num_adapted += self.adapts
        self.identity.begin_task(task, self.network.backbone, self.rfe.chain, moves=self.adapts)
        self.identity.to(self.network.task_of_unit.device)
        if task.index:
            # Nothing has moved since task t-1 ended: this is f_{t-1}, the teacher if the backbone is to be trained.
            self.rfe.end_task(self.network.backbone, keeps_teacher=self.adapts)
        super().begin_task(task)
        with (self.setup.key / "retrospectors" / task.index).initialising():
            self.rfe.begin_task(moves=self.adapts)

    @torch.no_grad()
    def prepare_task(self, task: TaskInfo, data: TaskData) -> None:
        """Start the new head as the discriminant of the features that it will be trained on."""
        if self.is_gentle and self.adapts:
            start_heads([self.network.heads[task.index]], *self._read(task, data), self.config.shrinkage)

    def _read(self, task: TaskInfo, data: TaskData) -> tuple[Tensor, Tensor]:
        """Features of a task's images, and labels within the task."""
        f = read_features(self.network.backbone, self.setup.image_shape, data)
        return f, data.labels - self.network.units(task.index).start

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        warn_about_rule(self.config.identity, self.network.sizes(), task)
        if not self.adapts:
            return
        yield self._fit(task)
        groups = {"auxiliary": self.rfe.distill_parameters()}
        if not self.config.end_to_end:
            groups["retrospector"] = self.rfe.retrospect_parameters(whole_chain=self.config.keep == "reservoir")
        groups = {name: parameters for name, parameters in groups.items() if parameters}
        if groups:
            yield self._retrospect(task, groups)

    def _fit(self, task: TaskInfo) -> Phase:
        """Stage 1: f_t and w_t, and end to end r_t and h_t with them."""
        backbone, head = self.network.backbone, self.network.heads[task.index]
        first_unit = self.network.units(task.index).start
        alpha = self.config.alpha if task.index else 0.0
        trained = [*self.network.learnable(), *head.parameters()]
        if self.config.end_to_end:
            trained += self.rfe.retrospect_parameters()

        def step(batch: Batch, update: Update) -> None:
            past = self.past.draw(batch, "replay") if alpha and self.past else None
            x = batch.x
            if past is not None:
                x = torch.cat([x, batch.augment(past, "replayed view")])
            f = backbone(x)
            now, then = slice(0, len(batch.y)), slice(len(batch.y), None)
            loss = F.cross_entropy(at_least_single(head(f[now])), batch.y - first_unit)
            if alpha:  # α = 0 is plain fine-tuning of f_t
                teacher = self.rfe.anchor if self.config.end_to_end else self.rfe.previous  # r leads to the anchor
                assert teacher is not None
                target = teacher.teacher_forward(x)
                estimate = self.rfe.chain.hop(self.rfe.chain.num_hops - 1, f, x) if self.config.end_to_end else f
                loss = loss + alpha * feature_estimation(estimate[now], target[now])
                if past is not None:
                    remembered = past.values["feature"] if self.config.memory_target == "stored" else target[then]
                    loss = loss + alpha * feature_estimation(estimate[then], remembered)
            update(loss)

        def validate(batch: Batch) -> Validation:
            logits = at_least_single(head(backbone(batch.x)))
            y = batch.y - first_unit
            return Validation({"classifier": F.cross_entropy(logits, y)}, num_correct(logits, y))

        awake, share = [head] if self.is_gentle else [backbone, head], 1 if self.config.form == "affine" else FIT_SHARE
        return Phase("fit", {"classifier": trained}, step, validate, self.setup.schedule.part(share), awake)

    def _retrospect(self, task: TaskInfo, groups: dict[str, list[torch.nn.Parameter]]) -> Phase:
        """Stage 2: h_{t+1} and r_t in one pass over the data, f_t frozen; each group has its own plateau."""
        cached, recall = self._frozen_backbones(), None
        if self.past is not None and "retrospector" in groups:
            recall = Recall(self.past, task.index, self.rfe)
            key = self.setup.key / "recall" / task.index
            cached = replace(cached, memory=self.past.memory, memory_key=key)

        def losses(batch: Batch) -> dict[str, Tensor]:
            now, then = batch.cached["now"], batch.cached.get("then")
            terms = {
                "auxiliary": lambda: self.rfe.distill_loss(batch.x, now),
                "retrospector": lambda: self.rfe.retrospect_loss(batch.x, now, then),
            }
            return {name: terms[name]() for name in groups}

        def step(batch: Batch, update: Update) -> None:
            loss = torch.stack(list(losses(batch).values())).sum()
            if recall is not None:
                loss = loss + recall.loss(batch)
            update(loss)

        epochs = self.config.retrospect_epochs or self.setup.schedule.epochs
        rate = self.config.retrospect_learning_rate
        schedule = replace(self.setup.schedule.part(1 - FIT_SHARE), epochs=epochs, learning_rate=rate)
        return Phase("retrospect", groups, step, lambda batch: Validation(losses(batch)), schedule, [self.rfe], cached)

    def _frozen_backbones(self) -> CachedFunctions:
        """f_t and the last anchor's f, which do not change in the second stage."""
        shape = self.setup.image_shape
        functions = {"now": folded(self.network.backbone, shape)}
        if self.rfe.anchor is not None:
            functions["then"] = folded(self.rfe.anchor.module, shape)
        return CachedFunctions(functions, self.config.views, self.config.views_megabytes << 20)

    @torch.no_grad()
    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        backbone = self.network.backbone
        if self.adapts:
            if self.config.form == "affine" and self.rfe.anchor is not None and self.rfe.previous is not None:
                teacher, shape = self.rfe.anchor.module, self.setup.image_shape
                head, share = self.network.heads[task.index], 1 / self._num_adapted if self.config.averaging else 1
                f = continue_with_mean(backbone, head, self.rfe.previous.module, share, shape, data)
                self.rfe.fit_affine(f, read_features(teacher, shape, data))
            warn_about_retrospector(self.config, self.rfe, self.network, task, data)
        if self.past is not None:
            self.past.write(task.index, data, backbone, self.rfe)
        first_unit, views = self.network.units(task.index).start, self.config.views if self.is_gentle else 1
        lesson = self.identity.end_task(task, first_unit, data, backbone, self.rfe.chain, views if self.adapts else 1)
        if not self.adapts:
            f, labels = (lesson.now.f, lesson.labels) if lesson else self._read(task, data)
            start_heads([self.network.heads[task.index]], f, labels, self.config.shrinkage)

    def add_images(self, data: TaskData) -> Tensor:
        """Count further images of the newest task in the statistics; nothing is trained. Returns their features."""
        first_unit = self.network.units(self.rfe.num_tasks - 1).start
        return self.identity.add(first_unit, data, self.network.backbone, self.rfe.chain).now.f

    def forget(self, units: Collection[int]) -> None:
        """Remove units from the heads, with all that is stored of their classes; what was trained stays as it is."""
        assert self.past is None, "the memory has samples of the classes"
        self.identity.rule.keep(self.network.drop_units(units))

    def scores(self, x: Tensor) -> Scores:
        f, estimates = self.features(x)
        rank = self.identity.evidence(x, f)
        return replace(self._scores(estimates, rank), til_without_chain=self._without_chain(f, rank))

    def reader(self, dtype: torch.dtype | None = None, *, without_chain: bool = False) -> Reader:
        backbone = folded(self.network.backbone, self.setup.image_shape, dtype)
        rewind = fused(self.rfe.chain, dtype)
        heads = None if self.identity.rule.needs_estimates else fused_heads(self.rfe.chain, [*self.network.heads])
        evidence = self.identity.reader(dtype)

        def read(x: Tensor) -> Scores:
            f = backbone(x)
            rank = evidence(x, f)
            if heads is None:
                scores = self._scores([*rewind(x, f), *[f] * self._num_unlearned()], rank)
            else:
                logits = at_least_single(F.linear(f, *heads)).split(self.network.sizes(), dim=1)
                scores = self._rank([f] * len(logits), logits, rank)
            return replace(scores, til_without_chain=self._without_chain(f, rank)) if without_chain else scores

        return read

    def _without_chain(self, f: Tensor, rank: Ranking) -> Tensor:
        """Scores within tasks by the same rule, with today's features in place of all estimates."""
        return self._scores([f] * len(self.network.heads), rank).til

    def _scores(self, estimates: list[Tensor], rank: Ranking) -> Scores:
        logits = [at_least_single(head(estimate)) for head, estimate in zip(self.network.heads, estimates, strict=True)]
        return self._rank(estimates, logits, rank)

    def _rank(self, estimates: list[Tensor], logits: Sequence[Tensor], rank: Ranking) -> Scores:
        learned = self.rfe.num_tasks
        cil = rank(estimates[:learned], logits[:learned] or logits)
        within = [cil, *logits[learned:]] if self.identity.rule.ranks_within_tasks and learned else [*logits]
        return Scores(til=torch.cat(within, dim=1), cil=cil)

    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        f = self.network.backbone(x)
        return f, [*self.rfe.rewind(x, f), *[f] * self._num_unlearned()]

    def _num_unlearned(self) -> int:
        """Fixed heads of future tasks, which read today's features."""
        return len(self.network.heads) - self.rfe.num_tasks

    def deployable_state(self) -> dict[str, Tensor]:
        """Everything but the adapter and the copies of the network that the start of the next task replaces."""
        replaced = ("rfe.adapter.", "rfe.recent.", "identity.before.", *["rfe.anchor."] * self.rfe.chain.is_at_anchor)
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(replaced)}

    def parameter_counts(self) -> Parameters:
        """Network and completed hops, without h_{t+1}, which has no r yet; in training also teachers and statistics."""
        chain, rule, first = self.rfe.chain, self.identity.rule, filter(None, [self.identity.first])
        inference = num_parameters(self.network, chain.retrospectors, chain.auxiliaries[: chain.num_hops], *first)
        inference += sum(b.numel() for b in (*chain.retrospectors.buffers(), *rule.read_buffers()))
        unread = sum(b.numel() * b.is_floating_point() for b in {*rule.buffers()} - {*rule.read_buffers()})
        teachers = filter(None, [self.rfe.anchor, self.rfe.recent])
        return Parameters(inference + unread + num_parameters(*teachers, self.identity.before), inference)


def _row(config: RFEConfig, about: str, order: int, colour: str, marker: str, cost: float = 1.4) -> Method:
    return Method(RFELearner, config, about, cost, 2, CONTENTS, colour, order, marker)


METHODS = {
    "rfe": _row(RFEConfig(), "the paper's method; keeps no data", 130, "#0072b2", "o"),
    "rfe-p": _row(RFEConfig(keep="previous"), "RFE with samples of the last tasks", 140, "#3c93cf", "^", cost=2.4),
    "rfe-b": _row(
        RFEConfig(keep="reservoir"),
        "RFE with a reservoir; all retrospectors are trained further",
        150,
        "#3c93cf",
        "s",
        cost=2.5,
    ),
    "rfe-plus": _row(
        RFEConfig(identity="anchored", gentle="pretrained", components=8), "RFE for unknown tasks", 155, "#009e73", "D"
    )._replace(pretrained={"alpha": 0.0, "form": "affine", "averaging": True, "mirror": True}),
    "rfe-e2e": _row(RFEConfig(end_to_end=True), "RFE trained end to end, without a second stage", 160, "#7a5fc4", "o"),
    "rfe-mlp-residual": _row(RFEConfig(form="mlp-residual"), "ablation: r = MLP([f, h]) + f", 170, "#0072b2", "X"),
    "rfe-mlp-projection": _row(RFEConfig(form="mlp-projection"), "ablation: r = MLP([f, h])", 180, "#009e73", "v"),
    "rfe-no-aux": _row(RFEConfig(form="no-aux"), "ablation: r = MLP(f), without h", 190, "#7a5fc4", "^"),
    "rfe-affine": _row(RFEConfig(form="affine"), "RFE with r = A f + b, not trained", 195, "#0072b2", "s", 1.2),
}
