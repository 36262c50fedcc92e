"""Which rows of a step's batch a process computes, where several do one run together.

What is random is drawn for the whole batch in every process, which then takes its own rows of it: together they see
what one process would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Share:
    """Rows `start` to `stop` of a batch of `total`; by default all of it, by one process."""

    start: int = 0
    stop: int = 1
    total: int = 1
    weight: float = 1.0
    """Of the mean over these rows in the mean over the batch."""
    gather: Callable[[Sequence[Tensor]], list[Tensor]] = list
    """Tensors with a row for each sample of this process's become those of all processes, in the batch's order."""

    def whole(self, num: int) -> int:
        """How many rows all processes have together where this one has `num` of its share."""
        own = self.stop - self.start
        return num if num % own else num // own * self.total

    def of(self, rows: Tensor) -> Tensor:
        """This process's part of rows drawn for all; all of them where they do not divide as the batch does.

        Either way the weighted mean over processes is the mean over rows.
        """
        each, rest = divmod(len(rows), self.total)
        return rows if rest else rows[each * self.start : each * self.stop]


WHOLE = Share()
