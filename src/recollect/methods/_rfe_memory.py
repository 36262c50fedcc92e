"""The samples S of RFE-P and RFE-B: each keeps its image and the feature f_i(x) taken once when its task i ended.

An image and its target always belong to the same view. Samples of the newest domain are compared with the teacher on
the augmented view; older ones go unaugmented down the chain to their domain and are compared with the stored feature.
`memory_target="stored"` uses the stored feature with an augmented image everywhere, as the authors' code does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.core import RFE, feature_estimation
from recollect.memory import Memory, Samples
from recollect.methods._rfe_config import RFEConfig
from recollect.streams import Batch, TaskData


class RFEMemory(nn.Module):
    """A memory whose samples know the domain (the task whose f took their feature) in which they are compared."""

    def __init__(self, config: RFEConfig, feature_dim: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.config = config
        fields = {"feature": torch.zeros(feature_dim), "domain": torch.zeros((), dtype=torch.int64)}
        self.memory = Memory(config.memory, image_shape, fields)

    def draw(self, batch: Batch, purpose: str) -> Samples | None:
        """As many samples as the stream's batch has."""
        return self.memory.sample(len(batch.y), batch.rng(purpose))

    def recall_loss(self, batch: Batch, task: int, backbone: nn.Module, rfe: RFE) -> Tensor:
        """L_FE of a draw carried down the chain, each sample to its own domain."""
        past = self.draw(batch, "recall")
        if past is None or rfe.anchor is None:
            return batch.x.new_zeros(())
        chain, domain, target = rfe.chain, past.values["domain"], past.values["feature"]
        last_hop = chain.num_hops - 1
        newest = domain >= last_hop * chain.stride
        x = batch.augmented(past.images, "recalled view")
        if self.config.memory_target == "view":
            x = torch.where(newest[:, None, None, None], x, batch.plain(past.images))
            target = torch.where(newest[:, None], rfe.anchor(x), target)
        with torch.no_grad():
            f_hat = backbone(x)
        oldest = max(0, task - self.config.last_tasks) if self.config.keep == "previous" else 0
        estimates = []
        for hop in range(last_hop, oldest // chain.stride - 1, -1):
            f_hat = chain.hop(hop, f_hat, x)
            estimates.append(f_hat)
        depth = last_hop - (domain // chain.stride).clamp(max=last_hop)
        estimate = torch.stack(estimates)[depth, torch.arange(len(depth), device=depth.device)]
        return feature_estimation(estimate, target)

    @torch.no_grad()
    def write(self, task: int, data: TaskData, backbone: nn.Module, rfe: RFE) -> None:
        """Take samples of the task that ended; under `previous` older ones than the last k tasks' go."""
        rng = (data.key / "memory").generator()
        if self.config.keep == "previous":
            slots = self.memory.make_room(task, self.config.last_tasks, len(data), rng)
            rows = torch.randperm(len(data), generator=rng)[: len(slots)]
        else:
            rows, slots = self.memory.admit(len(data), rng)
        for batch, chunk in zip(data.batches(rows), slots.split(data.batch_size), strict=True):
            domain = torch.full_like(batch.y, task)
            self.memory.write(chunk, batch.images, batch.y, task, feature=backbone(batch.x), domain=domain)
        if rfe.chain.is_anchor(task):
            self._move_to_anchor(task, data, backbone, rfe.chain.stride)

    def _move_to_anchor(self, anchor: int, data: TaskData, backbone: nn.Module, stride: int) -> None:
        """Tasks between anchors have no space of their own to be compared in: retake their samples in this anchor's."""
        domains = self.memory.get_buffer("domain")[: len(self.memory)]
        between = ((domains % stride != 0) & (domains < anchor)).nonzero()[:, 0]
        for slots in between.split(data.batch_size):
            held = self.memory.at(slots)
            feature = backbone(data.pixels.plain(held.images))
            domain = torch.full_like(held.tasks, anchor)
            self.memory.write(slots, held.images, held.labels, held.tasks, feature=feature, domain=domain)
