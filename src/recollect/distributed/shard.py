"""The rows of a global batch that one rank computes.

Everything random is drawn for the global batch on every rank, and each rank takes its own rows of the draw: together
the ranks see what a single process would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Rows `start` to `stop` of a global batch of `total` rows; by default all rows, on a single rank."""

    start: int = 0
    stop: int = 1
    total: int = 1
    weight: float = 1.0
    """The share of these rows in the global batch, by which their mean is weighted."""
    gather: Callable[[Sequence[Tensor]], list[Tensor]] = list
    """Concatenates the rows of all ranks in the order of the batch; the tensors have one row per sample."""

    def global_size(self, num: int) -> int:
        """The number of rows on all ranks together where this rank has `num`."""
        local = self.stop - self.start
        return num if num % local else num // local * self.total

    def split(self, rows: Tensor) -> tuple[Tensor, Shard]:
        """This rank's part of rows drawn for all ranks, and the shard that it forms.

        Rows that do not divide as the batch does are computed in full by every rank. Either way the weighted mean over
        ranks is the mean over rows.
        """
        factor, rest = divmod(len(rows), self.total)
        return (rows, UNSHARDED) if rest else (rows[factor * self.start : factor * self.stop], self)

    def draw(self, num: int, sample: Callable[[int], Tensor]) -> Tensor:
        """A random value for each of this rank's `num` rows, from `sample(n)`, which draws n values for all ranks."""
        return self.split(sample(self.global_size(num)))[0]

    def position(self, num: int) -> tuple[int, int]:
        """How many rows the ranks before this one have, and how many all ranks have, where this rank has `num`."""
        (starts,) = self.gather([torch.full((num,), self.start)])
        return int((starts < self.start).sum()), len(starts)


UNSHARDED = Shard()
