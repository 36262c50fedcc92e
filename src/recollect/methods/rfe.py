"""Retrospective Feature Estimation: RFE, RFE-P, RFE-B, its variants, and end-to-end training.

fit          L_CE(w_t ∘ f_t, D_t) + α L_FE(f_t, D_t ∪ S, f_{t-1})
retrospect   L_FE(adapter ∘ h_{t+1}, D_t, f_t);  L_FE(r_t, D_t ∪ S, f_{t-1})
end to end   L_CE + α L_FE(r_t, D_t ∪ S, f_{t-1}), gradient through r_t into f_t, and nothing else

S is nothing (RFE), samples of the last k tasks (RFE-P) or a reservoir over all tasks (RFE-B).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.core import RFE, ClassMeans, average, feature_estimation
from recollect.memory import Memory
from recollect.methods._rfe_config import RFEConfig
from recollect.methods.learner import (
    Learner, Method, Parameters, Phase, Schedule, Scores, Setup, Update, Validation, num_parameters, num_right,
)  # fmt: skip
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo


class RFELearner(Learner[RFEConfig]):
    """The heads of old tasks stay as they were; the chain brings today's features to them."""

    def __init__(self, network: Network, config: RFEConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        nonnegative = bool(network.backbone.nonnegative)
        self.rfe = RFE(
            network.feature_dim, in_channels=setup.image_shape[0], auxiliary_dim=config.auxiliary_dim,
            projection_dim=config.projection_dim, form=config.form, bias=config.bias, pool=config.pool,
            final_relu=config.final_relu and nonnegative, stride=config.stride,
            teacher_statistics=config.teacher_statistics, end_to_end=config.end_to_end,
        )  # fmt: skip
        self.means = ClassMeans(network.feature_dim) if config.identity == "class-means" else None
        self.memory: Memory | None = None
        if config.keep != "none":
            fields = {"feature": torch.zeros(network.feature_dim), "domain": torch.zeros((), dtype=torch.int64)}
            self.memory = Memory(config.memory, setup.image_shape, fields)

    def begin_task(self, task: TaskInfo) -> None:
        if task.index:
            self.rfe.end_task(self.network.backbone)  # nothing has moved since task t-1 ended: this is f_{t-1}
        super().begin_task(task)
        with (self.setup.key / "retrospectors" / task.index).initialising():
            self.rfe.begin_task()
        if self.means is not None:
            self.means.grow(task.num_classes)
        elif task.num_classes == 1:
            warnings.warn("identity='average' cannot rank a task of one class, whose softmax is always 1; "
                          "use identity='class-means'", stacklevel=2)  # fmt: skip

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        backbone, head, end_to_end = self.network.backbone, self.network.heads[task.index], self.config.end_to_end
        first_unit = self.network.units(task.index).start
        trained = [*backbone.parameters(), *head.parameters()]
        if end_to_end:
            trained += self.rfe.retrospect_parameters()

        def fit(batch: Batch, update: Update) -> None:
            alpha = self.config.alpha if task.index else 0.0
            past = self._draw(batch, "replay") if alpha else None
            x = batch.x if past is None else torch.cat([batch.x, batch.augmented(past.images, "replayed view")])
            f = backbone(x)
            loss = F.cross_entropy(head(f[: len(batch.y)]).float(), batch.y - first_unit)
            if alpha:  # α = 0 is plain fine-tuning of f_t
                assert self.rfe.previous is not None
                target = self.rfe.previous.beside(x)
                estimate = self.rfe.chain.hop(self.rfe.chain.num_hops - 1, f, x) if end_to_end else f
                now, then = slice(0, len(batch.y)), slice(len(batch.y), None)
                loss = loss + alpha * feature_estimation(estimate[now], target[now])
                if past is not None:
                    stored = self.config.memory_target == "stored"
                    remembered = past.values["feature"] if stored else target[then]
                    loss = loss + alpha * feature_estimation(estimate[then], remembered)
            update(loss)

        def validate(batch: Batch) -> Validation:
            logits = head(backbone(batch.x)).float()
            y = batch.y - first_unit
            return Validation({"classifier": F.cross_entropy(logits, y)}, num_right(logits, y))

        yield Phase("fit", {"classifier": trained}, fit, validate, self.setup.schedule, [backbone, head])

        distilled = self.rfe.distill_parameters()
        retrospected = [] if end_to_end else self.rfe.retrospect_parameters(whole_chain=self.config.keep == "reservoir")
        groups = {"auxiliary": distilled, "retrospector": retrospected}
        groups = {name: parameters for name, parameters in groups.items() if parameters}

        def losses(batch: Batch) -> dict[str, Tensor]:
            with torch.no_grad():
                f = backbone(batch.x)
            each = {"auxiliary": self.rfe.distill_loss, "retrospector": self.rfe.retrospect_loss}
            return {name: each[name](batch.x, f) for name in groups}

        def retrospect(batch: Batch, update: Update) -> None:
            loss = torch.stack(list(losses(batch).values())).sum()
            if "retrospector" in groups and self.memory is not None:
                loss = loss + self._recall_loss(batch, task.index)
            update(loss)

        if groups:
            epochs = self.config.retrospect_epochs or self.setup.schedule.epochs
            schedule = Schedule(epochs, self.config.retrospect_learning_rate)
            yield Phase("retrospect", groups, retrospect, lambda b: Validation(losses(b)), schedule, [self.rfe])

    def _draw(self, batch: Batch, purpose: str):  # type: ignore[no-untyped-def]
        return None if self.memory is None else self.memory.sample(len(batch.y), batch.rng(purpose))

    def _recall_loss(self, batch: Batch, task: int) -> Tensor:
        """Memory samples carried down the chain: the newest to f_{t-1} of the same view, older ones to what was stored."""
        past = self._draw(batch, "recall")
        chain, anchor = self.rfe.chain, self.rfe.anchor
        if past is None or anchor is None:
            return batch.x.new_zeros(())
        last_hop = chain.num_hops - 1
        newest = past.values["domain"] >= last_hop * chain.stride
        x = batch.augmented(past.images, "recalled view")
        if self.config.memory_target == "view":
            x = torch.where(newest[:, None, None, None], x, batch.plain(past.images))
        with torch.no_grad():
            f_hat = self.network.backbone(x)
        oldest = max(0, task - self.config.last_tasks) if self.config.keep == "previous" else 0
        estimates = []
        for hop in range(last_hop, oldest // chain.stride - 1, -1):
            f_hat = chain.hop(hop, f_hat, x)
            estimates.append(f_hat)
        depth = last_hop - (past.values["domain"] // chain.stride).clamp(max=last_hop)
        estimate = torch.stack(estimates)[depth, torch.arange(len(depth), device=depth.device)]
        target = past.values["feature"]
        if self.config.memory_target == "view":
            target = torch.where(newest[:, None], anchor(x), target)
        return feature_estimation(estimate, target)

    @torch.no_grad()
    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        backbone = self.network.backbone
        if self.memory is not None:
            rng = (data.key / "memory").generator()
            if self.config.keep == "previous":
                slots = self.memory.make_room(task.index, self.config.last_tasks, len(data), rng)
                rows = torch.randperm(len(data), generator=rng)[: len(slots)]
            else:
                rows, slots = self.memory.admit(len(data), rng)
            for batch, chunk in zip(data.batches(rows), slots.split(data.batch_size), strict=True):
                domain = torch.full_like(batch.y, task.index)
                self.memory.write(chunk, batch.images, batch.y, task.index, feature=backbone(batch.x), domain=domain)
            if self.rfe.chain.stride > 1 and self.rfe.chain.is_anchor(task.index):
                self._move_to_anchor(task.index, data)
        if self.means is not None:
            pairs = [(backbone(batch.x), batch.y) for batch in data.batches()]
            labels = torch.cat([y for _, y in pairs]) - self.network.units(task.index).start
            self.means.record(task.index, torch.cat([f for f, _ in pairs]), labels)

    def _move_to_anchor(self, anchor: int, data: TaskData) -> None:
        """Tasks between anchors have no space of their own to be compared in: retake their samples in this anchor's."""
        assert self.memory is not None
        domains = self.memory.get_buffer("domain")[: len(self.memory)]
        between = ((domains % self.rfe.chain.stride != 0) & (domains < anchor)).nonzero()[:, 0]
        for slots in between.split(data.batch_size):
            held = self.memory.at(slots)
            values = {"feature": self.network.backbone(data.pixels.plain(held.images)),
                      "domain": torch.full_like(held.tasks, anchor)}  # fmt: skip
            self.memory.write(slots, held.images, held.labels, held.tasks, **values)

    def scores(self, x: Tensor) -> Scores:
        f, estimates = self.features(x)
        logits = [head(estimate).float() for head, estimate in zip(self.network.heads, estimates, strict=True)]
        cil = average(logits) if self.means is None else self.means(estimates[: self.means.num_tasks])
        return Scores(til=torch.cat(logits, dim=1), cil=cil, til_without_chain=self.network.logits(f).float())

    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        f = self.network.backbone(x)
        unlearned = len(self.network.heads) - self.rfe.num_tasks  # fixed heads of tasks to come read today's features
        return f, [*self.rfe.rewind(x, f), *[f] * unlearned]

    def parameter_counts(self) -> Parameters:
        """Network and completed hops; while training also the teachers. h_{t+1}, still without its r, is not counted."""
        chain = self.rfe.chain
        inference = num_parameters(self.network, chain.retrospectors, chain.auxiliaries[: chain.num_hops])
        teachers = [teacher for teacher in (self.rfe.anchor, self.rfe.recent) if teacher is not None]
        return Parameters(inference + num_parameters(*teachers), inference)


METHODS = {
    "rfe": Method(RFELearner, RFEConfig(), "the paper's method; keeps no data"),
    "rfe-p": Method(RFELearner, RFEConfig(keep="previous"), "RFE with samples of the last task"),
    "rfe-b": Method(RFELearner, RFEConfig(keep="reservoir"), "RFE with a reservoir that also tunes the whole chain"),
    "rfe-e2e": Method(RFELearner, RFEConfig(end_to_end=True), "RFE trained end to end, without a second stage"),
    "rfe-mlp-residual": Method(RFELearner, RFEConfig(form="mlp-residual"), "ablation: r = MLP([f, h]) + f"),
    "rfe-mlp-projection": Method(RFELearner, RFEConfig(form="mlp-projection"), "ablation: r = MLP([f, h])"),
    "rfe-no-aux": Method(RFELearner, RFEConfig(form="no-aux"), "ablation: r = MLP(f), without h"),
}
