"""DER++ (Buzzega et al. 2020): L = L_CE(batch) + α ||z(x') - z'||² + β L_CE(x', y'), z' the logits when x' was stored.

Units that did not exist yet when a sample was stored have no logit to compare; the squared error is the mean over those
that did.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.methods._replay import ReplayConfig, ReplayLearner
from recollect.methods.learner import Method, Setup, Update
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo


@dataclass(frozen=True, kw_only=True)
class DERppConfig(ReplayConfig):
    distill: float = 0.2
    """Weight of the squared error to stored logits, α; the paper searches 0.2, 0.5."""
    replay: float = 0.5
    """Weight of the cross-entropy on replayed labels, β; the paper searches 0.5, 1."""
    two_draws: bool = False
    """Draw a second batch for the cross-entropy instead of using the first for both terms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distill < 0 or self.replay < 0:
            raise UserError(f"distill and replay cannot be negative, got {self.distill} and {self.replay}")


class DERpp(ReplayLearner[DERppConfig]):
    """Dark experience replay with labels."""

    def __init__(self, network: Network, config: DERppConfig, setup: Setup) -> None:
        fields = {"logits": torch.zeros(0), "num_units": torch.zeros((), dtype=torch.int64)}
        super().__init__(network, config, setup, fields)

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        self.memory.widen("logits", len(self.network.task_of_unit))

    def step(self, batch: Batch, update: Update) -> None:
        ce, units, now = self.network.cross_entropy, self.config.units, len(batch.y)
        drawn = [self.replay(batch)]
        if self.config.two_draws:
            drawn.append(self.replay(batch, "second replay"))
        draws = [draw for draw in drawn if draw is not None]
        logits = at_least_single(self.network(torch.cat([batch.x, *(view for _, view in draws)])))
        loss = ce(logits[:now], batch.y, units)
        if draws:
            z = logits[now:].split([len(past.labels) for past, _ in draws])
            first, last = draws[0][0], draws[-1][0]
            loss = loss + self.config.distill * known_error(z[0], first.values["logits"], first.values["num_units"])
            loss = loss + self.config.replay * ce(z[-1], last.labels, units)
        update(loss)
        num_units = torch.full_like(batch.y, logits.shape[1])
        self.remember(batch, logits=logits[:now].detach(), num_units=num_units)


def known_error(z: Tensor, stored: Tensor, num_units: Tensor) -> Tensor:
    """Mean squared error over the units that each sample had when it was stored."""
    known = torch.arange(z.shape[1], device=z.device)[None, :] < num_units[:, None]
    return ((z - stored).square() * known).sum() / known.sum()


METHODS = {
    "derpp": Method(
        DERpp,
        DERppConfig(),
        "squared error to stored logits and cross-entropy on replay",
        cost=1.8,
        colour="#b07d00",
        order=80,
        marker="s",
    )
}
