"""Networks that read many images: on a processor several batches at a time, a thread or a few for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

import torch

Item = TypeVar("Item")
Output = TypeVar("Output")
MAX_AT_A_TIME = 8  # batches; beyond that they wait for Python's lock, and each takes memory


def read_batches(read: Callable[[Item], Output], batches: Iterable[Item], device: torch.device) -> Iterator[Output]:
    """`read(batch)` of each batch, in order; it must not change anything.

    Threads that share a layer wait for each other at its end. Beside other programs, that takes most of the time. On
    a processor each batch therefore has threads of its own. Gradients, inference mode and autocast are as in the
    caller.

    >>> batches = [torch.ones(1), 2 * torch.ones(2), 3 * torch.ones(3)]
    >>> [int(total) for total in read_batches(torch.sum, batches, torch.device("cpu"))]
    [1, 4, 9]
    """
    rest = iter(batches)
    first = list(islice(rest, 2))
    threads = torch.get_num_threads()
    workers = min(threads, MAX_AT_A_TIME)
    shares = device.type == "cpu" and workers > 1 and len(first) > 1 and torch.backends.openmp.is_available()
    if not shares:
        yield from map(read, chain(first, rest))
        return
    read = _as_here(read)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
            pending = deque[Future[Output]]()
            for batch in chain(first, rest):
                pending.append(pool.submit(read, batch))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        torch.set_num_threads(threads)  # a worker's choice is also that of threads to come


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
