"""The processes of one run: replicas that each compute a share of every batch and agree on all that moves.

Gradients, losses and moving statistics are means weighted by share; where all compute the same, the first one's word
counts. A process alone agrees with itself, and nothing is exchanged.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from recollect.errors import OneProcessError, UserError
from recollect.launch import launched
from recollect.share import WHOLE, Share

FEWEST_ROWS = 2  # BatchNorm cannot take a single image
PATIENCE = timedelta(days=1)  # the first may fetch data; a process that dies is noticed at once


@dataclass(frozen=True)
class Processes:
    """This process among `size`, counted from 0."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the first, the only one that writes and speaks."""
        return self.rank == 0

    def check(self, batch_size: int) -> None:
        """Refuse batches that are too small to be shared."""
        if self.size > 1 and batch_size < FEWEST_ROWS * self.size:
            raise UserError(
                f"batch_size={batch_size} cannot be shared by {self.size} processes, which need at least "
                f"{FEWEST_ROWS} images each; start fewer, or give larger batches"
            )

    def share(self, num: int) -> Share:
        """This process's part of a batch; a last one too small for all is computed whole by each."""
        if self.size == 1:
            return WHOLE
        if num < FEWEST_ROWS * self.size:
            return Share(weight=1 / self.size)
        start, stop = (num * rank // self.size for rank in (self.rank, self.rank + 1))
        return Share(start, stop, num, (stop - start) / num, self.gather)

    @torch.no_grad()
    def mean_(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Replace tensors by their weighted sums over processes, in one exchange."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).mul_(weight)
        with _together():
            dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def gather(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """The rows of all processes, in order, of tensors that have as many rows as each other."""
        num = len(columns[0])
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = num
        rows = torch.cat([_as_bytes(column) for column in columns], dim=1)
        with _together():
            dist.all_reduce(counts)
            padded = rows.new_zeros(int(counts.max()), rows.shape[1])
            padded[:num] = rows
            found = [torch.empty_like(padded) for _ in counts]
            dist.all_gather(found, padded)
        whole = torch.cat([part[:count] for part, count in zip(found, counts.tolist(), strict=True)])
        widths = [math.prod(column.shape[1:]) * column.itemsize for column in columns]
        return [
            part.clone(memory_format=torch.contiguous_format).view(column.dtype).reshape(len(whole), *column.shape[1:])
            for part, column in zip(whole.split(widths, dim=1), columns, strict=True)
        ]

    @torch.no_grad()
    def take_first_(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by the first process's."""
        if self.size == 1:
            return
        for tensor in tensors:
            dense = tensor.contiguous()
            with _together():
                dist.broadcast(dense, src=0)
            tensor.copy_(dense)

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        with _together():
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)

    def differing(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of the tensors that are not the same bits in all processes."""
        if self.size == 1:
            return []
        low = torch.tensor([_digest(tensor) for tensor in tensors.values()])
        high = low.clone()
        with _together():
            dist.all_reduce(low, op=dist.ReduceOp.MIN)
            dist.all_reduce(high, op=dist.ReduceOp.MAX)
        return [name for name, same in zip(tensors, (low == high).tolist(), strict=True) if not same]

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process does this, then the others do; where it fails they end too, and say nothing."""
        if not self.leads and self.largest(0):
            raise UserError("the first process has ended")
        try:
            yield
        except BaseException as error:
            if not self.leads and isinstance(error, (UserError, OSError)):
                raise OneProcessError(f"process {self.rank + 1} of {self.size}: {error}") from error
            if self.leads:
                with suppress(UserError):
                    self.largest(1)
            raise
        if self.leads:
            self.largest(0)
        self.largest(0)  # all are done


ALONE = Processes()


@contextmanager
def joined() -> Iterator[Processes]:
    """All processes that torchrun started, for the time of a run; this one alone where it started none."""
    launch = launched()
    if launch.size == 1:
        yield ALONE
        return
    begins = not dist.is_initialized()
    if begins:
        accelerated = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if accelerated else "gloo", timeout=PATIENCE)
    try:
        yield Processes(*launch)
    finally:
        if begins:
            dist.destroy_process_group()


@contextmanager
def _together() -> Iterator[None]:
    """An exchange with the other processes."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            "another process of this run has ended; the same command goes on from the last checkpoint"
        ) from error


def _as_bytes(column: Tensor) -> Tensor:
    rows = column.detach().reshape(len(column), math.prod(column.shape[1:]))
    return rows.contiguous().view(torch.uint8)


def _digest(tensor: Tensor) -> int:
    data = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1
