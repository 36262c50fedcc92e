"""The samples S of RFE-P and RFE-B: each keeps its image and the feature f_i(x) taken once when its task i ended.

An image and its target always belong to the same view. Samples of the newest domain are compared with the teacher on
the augmented view; older ones go unaugmented down the chain to their domain and are compared with the stored feature.
`memory_target="stored"` uses the stored feature with an augmented image everywhere, as the authors' code does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.core import RFE, feature_estimation
from recollect.memory import Memory
from recollect.methods._rfe_config import RFEConfig
from recollect.streams import Batch, Samples, TaskData, split_rows


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

    @torch.no_grad()
    def write(self, task: int, data: TaskData, backbone: nn.Module, rfe: RFE) -> None:
        """Take samples of the task that ended; under `previous` older ones than the last k tasks' go."""
        rng = (data.key / "memory").generator()
        space = rfe.chain.spaces[-1]
        if self.config.keep == "previous":
            slots = self.memory.make_room(task, self.config.last_tasks, len(data), rng)
            rows = torch.randperm(len(data), generator=rng)[: len(slots)]
        else:
            rows, slots = self.memory.admit(len(data), rng)
        for batch, chunk in zip(data.batches(rows), split_rows(slots, data.batch_size), strict=True):
            domain = torch.full_like(batch.y, space)
            self.memory.write(chunk, batch.images, batch.y, task, feature=backbone(batch.x), domain=domain)
        if rfe.chain.is_at_anchor:
            self._move_to_anchor(space, data, backbone, rfe.chain.stride)

    def _move_to_anchor(self, anchor: int, data: TaskData, backbone: nn.Module, stride: int) -> None:
        """Tasks between anchors have no space of their own to be compared in: retake their samples in this anchor's."""
        domains = self.memory.get_buffer("domain")[: len(self.memory)]
        between = ((domains % stride != 0) & (domains < anchor)).nonzero()[:, 0]
        for slots in split_rows(between, data.batch_size):
            samples = self.memory.at(slots)
            feature = backbone(data.pixels.normalise(samples.images))
            domain = torch.full_like(samples.tasks, anchor)
            self.memory.write(slots, samples.images, samples.labels, samples.tasks, feature=feature, domain=domain)


class Recall:
    """The samples in one second stage: L_FE of a draw carried down the chain, each sample to its own domain."""

    def __init__(self, past: RFEMemory, task: int, rfe: RFE) -> None:
        self.past, self.rfe = past, rfe
        self.oldest = max(0, task - past.config.last_tasks) if past.config.keep == "previous" else 0

    def loss(self, batch: Batch) -> Tensor:
        samples, chain = self.past.draw(batch, "recall"), self.rfe.chain
        if samples is None:
            return batch.x.new_zeros(())
        domain, last_hop = samples.values["domain"], chain.num_hops - 1
        newest = domain >= last_hop * chain.stride
        augments_all = self.past.config.memory_target == "stored"
        assert batch.recall is not None
        x, features = batch.recall(samples, newest | augments_all)
        f_hat, target = features["now"], samples.values["feature"]
        if not augments_all:
            target = torch.where(newest[:, None], features["then"].to(target.dtype), target)
        estimates = []
        for hop in range(last_hop, self.oldest // chain.stride - 1, -1):
            f_hat = chain.hop(hop, f_hat, x)
            estimates.append(f_hat)
        depth = last_hop - (domain // chain.stride).clamp(max=last_hop)
        estimate = torch.stack(estimates)[depth, torch.arange(len(depth), device=depth.device)]
        return feature_estimation(estimate, target)
