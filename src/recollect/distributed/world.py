"""The ranks of one run: replicas that each compute a shard of every batch and agree on all state.

Gradients, losses and running statistics are means weighted by shard size; where all ranks compute the same value, that
of the main rank counts. A single process communicates with nobody.
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

from recollect.distributed.launch import SINGLE_LAUNCH, Launch, read_launch
from recollect.distributed.shard import UNSHARDED, Shard
from recollect.errors import OneProcessError, UserError

MIN_ROWS = 2  # BatchNorm cannot take a single image
TIMEOUT = timedelta(days=1)  # the main rank may download data; a process that dies is noticed at once


@dataclass(frozen=True)
class World:
    """All ranks of a run, seen from one of them."""

    launch: Launch = SINGLE_LAUNCH

    @property
    def size(self) -> int:
        return self.launch.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files and prints."""
        return self.launch.is_main

    def check_batch_size(self, batch_size: int) -> None:
        """Refuse batches that are too small to be sharded."""
        if self.size > 1 and batch_size < MIN_ROWS * self.size:
            raise UserError(
                f"batch_size={batch_size} cannot be sharded over {self.size} processes, which need at least "
                f"{MIN_ROWS} images each; start fewer processes, or set a larger batch_size"
            )

    def shard(self, num: int) -> Shard:
        """This rank's rows of a global batch; every rank computes all rows of a last batch that is too small."""
        if self.size == 1:
            return UNSHARDED
        if num < MIN_ROWS * self.size:
            return Shard(weight=1 / self.size)
        start, stop = (num * rank // self.size for rank in (self.launch.rank, self.launch.rank + 1))
        return Shard(start, stop, num, (stop - start) / num, self.all_gather)

    @torch.no_grad()
    def all_reduce_(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Replace tensors by their weighted sums over all ranks, in one exchange."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).mul_(weight)
        with _report_lost_rank():
            dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def all_gather(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """The rows of all ranks, in order of rank; all columns have the same number of rows."""
        num = len(columns[0])
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.launch.rank] = num
        rows = torch.cat([_as_bytes(column) for column in columns], dim=1)
        with _report_lost_rank():
            dist.all_reduce(counts)
            padded = rows.new_zeros(int(counts.max()), rows.shape[1])
            padded[:num] = rows
            received = [torch.empty_like(padded) for _ in counts]
            dist.all_gather(received, padded)
        gathered = torch.cat([part[:count] for part, count in zip(received, counts.tolist(), strict=True)])
        widths = [math.prod(column.shape[1:]) * column.itemsize for column in columns]
        return [
            part.clone(memory_format=torch.contiguous_format)
            .view(column.dtype)
            .reshape(len(gathered), *column.shape[1:])
            for part, column in zip(gathered.split(widths, dim=1), columns, strict=True)
        ]

    @torch.no_grad()
    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of the main rank."""
        if self.size == 1:
            return
        for tensor in tensors:
            dense = tensor.contiguous()
            with _report_lost_rank():
                dist.broadcast(dense, src=0)
            tensor.copy_(dense)

    def all_reduce_max(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        with _report_lost_rank():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def find_differences(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of the tensors that are not the same bits on all ranks."""
        if self.size == 1:
            return []
        low = torch.tensor([_digest(tensor) for tensor in tensors.values()])
        high = low.clone()
        with _report_lost_rank():
            dist.all_reduce(low, op=dist.ReduceOp.MIN)
            dist.all_reduce(high, op=dist.ReduceOp.MAX)
        return [name for name, same in zip(tensors, (low == high).tolist(), strict=True) if not same]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on the main rank, then on the others; if it fails there, the others end without a message."""
        if not self.is_main and self.all_reduce_max(0):
            raise UserError("the main process has ended")
        try:
            yield
        except BaseException as error:
            if not self.is_main and isinstance(error, (UserError, OSError)):
                raise OneProcessError(f"process {self.launch.rank + 1} of {self.size}: {error}") from error
            if self.is_main:
                with suppress(UserError):
                    self.all_reduce_max(1)
            raise
        if self.is_main:
            self.all_reduce_max(0)
        self.all_reduce_max(0)  # wait until every rank is done


SINGLE = World()


@contextmanager
def join_world() -> Iterator[World]:
    """All processes that torchrun started, for the duration of a run; a single one where it started none.

    They leave together: gloo takes the early end of a process for a crash while others still talk to it.
    """
    launch = read_launch()
    if launch.world_size == 1:
        yield SINGLE
        return
    is_owner = not dist.is_initialized()
    if is_owner:
        accelerated = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if accelerated else "gloo", timeout=TIMEOUT)
    try:
        yield World(launch)
        if is_owner:
            with _report_lost_rank():
                dist.barrier()
    finally:
        if is_owner:
            dist.destroy_process_group()


@contextmanager
def _report_lost_rank() -> Iterator[None]:
    """A collective that fails because another rank has ended says so."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            "another process of this run has ended; the same command resumes from the last checkpoint"
        ) from error


def _as_bytes(column: Tensor) -> Tensor:
    rows = column.detach().reshape(len(column), math.prod(column.shape[1:]))
    return rows.contiguous().view(torch.uint8)


def _digest(tensor: Tensor) -> int:
    data = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1
