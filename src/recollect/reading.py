"""Networks that read many images: on a CPU several batches at a time, a thread or a few for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from threading import Barrier, Lock
from typing import TypeVar

import torch

Item = TypeVar("Item")
Output = TypeVar("Output")
MAX_AT_A_TIME = 8  # batches; beyond that they wait for Python's lock, and each takes memory
_starting = Lock()


def read_batches(read: Callable[[Item], Output], batches: Iterable[Item], device: torch.device) -> Iterator[Output]:
    """`read(batch)` of each batch, in order. Several threads call it, so it must not change anything.

    Threads that share a layer wait for each other at its end, which takes most of the time while other programs are
    running. On a CPU each batch therefore has threads of its own. Gradients, inference mode and autocast are as in the
    caller.

    >>> batches = [torch.ones(1), 2 * torch.ones(2), 3 * torch.ones(3)]
    >>> [int(total) for total in read_batches(torch.sum, batches, torch.device("cpu"))]
    [1, 4, 9]
    """
    rest = iter(batches)
    first = list(islice(rest, 2))
    threads = torch.get_num_threads()
    own = -(-threads // MAX_AT_A_TIME)  # threads of a batch
    if device.type != "cpu" or threads == 1 or len(first) < 2 or not torch.backends.openmp.is_available():
        yield from map(read, chain(first, rest))
        return
    read, pending = _as_here(read), deque[Future[Output]]()
    with _workers(threads // own, own, threads) as pool:
        for batch in chain(first, rest):
            pending.append(pool.submit(read, batch))
            if len(pending) > threads // own:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _workers(number: int, own: int, threads: int) -> ThreadPoolExecutor:
    """That many workers of `own` threads each; other threads of the process, also those to come, keep `threads`."""
    started = Barrier(number + 1)

    def start() -> None:
        torch.get_num_threads()  # a thread takes the number of the process at its first call, and its own only then
        torch.set_num_threads(own)
        started.wait()

    with _starting:  # the number of the process is that of whoever sets it last
        pool = ThreadPoolExecutor(number, initializer=start)
        try:
            for _ in range(number):
                pool.submit(int)
            started.wait()
        except BaseException:  # no more threads, or Ctrl-C: those that wait would wait for ever
            started.abort()
            raise
        finally:
            torch.set_num_threads(threads)
    return pool


def _as_here(read: Callable[[Item], Output]) -> Callable[[Item], Output]:
    """`read` in the caller's modes, which each thread has for itself."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def run(batch: Item) -> Output:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(gradients),
            torch.autocast("cpu", dtype=dtype, enabled=autocast),
        ):
            return read(batch)

    return run
