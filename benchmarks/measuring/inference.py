"""Inference through the chain and without it, and how its cost grows with the number of tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from measuring.timing import Work, report_progress, time_in_turn
from measuring.training import Bench
from recollect.core import average, folded
from recollect.device import at_least_single
from recollect.engine import Runtime

ROUNDS = {1: 150, 32: 20, 256: 7}
"""By batch size."""
CHAIN_LENGTHS = (1, 2, 5, 10, 20, 50, 100)


class Readers:
    """One class-incremental pass through the chain, and through the same backbone and heads without it."""

    def __init__(self, num_tasks: int, precision: str) -> None:
        self.runtime = Runtime.choose("auto", precision)
        bench = Bench("rfe", num_tasks, views=0)
        self.learner = bench.learner.eval()
        self.read = self.learner.reader(self.runtime.dtype)
        self.backbone = folded(self.learner.network.backbone, (3, 32, 32), self.runtime.dtype)

    def through_chain(self, x: Tensor) -> Tensor:
        return self.read(x).cil

    def without(self, x: Tensor) -> Tensor:
        f = self.backbone(x)
        return average([at_least_single(head(f)) for head in self.learner.network.heads])

    def measure(self, batch: int, rounds: int) -> tuple[list[float], list[float]]:
        x = torch.randn(batch, 3, 32, 32).to(self.runtime.device)

        def timed(function: Callable[[Tensor], Tensor]) -> Work:
            def work() -> None:
                with torch.inference_mode(), self.runtime.autocast():
                    function(x)

            return work

        times = time_in_turn({"chain": timed(self.through_chain), "plain": timed(self.without)}, rounds)
        return times["chain"], times["plain"]


def measure_inference(precisions: Sequence[str] = ("fp32", "bf16"), share: float = 1.0) -> list[dict[str, Any]]:
    """With a share of the usual rounds, at least 5."""
    cells = []
    for precision in precisions:
        for num_tasks in (10, 20):
            readers = Readers(num_tasks, precision)
            for batch, rounds in ROUNDS.items():
                report_progress(f"inference, {precision}, {num_tasks} tasks, batch {batch}")
                chain, plain = readers.measure(batch, max(5, round(share * rounds)))
                ratio = median(c / p for c, p in zip(chain, plain, strict=True))
                cells.append({"precision": precision, "tasks": num_tasks, "batch": batch, "ratio": ratio,
                              "milliseconds": 1000 * median(chain), "milliseconds_without": 1000 * median(plain)})  # fmt: skip
    return cells


def measure_chain_growth() -> list[dict[str, Any]]:
    """Time of one pass and bytes of the model against the number of tasks."""
    cells = []
    for num_tasks in CHAIN_LENGTHS:
        report_progress(f"chain of {num_tasks} tasks")
        readers = Readers(num_tasks, "auto")
        chain, plain = readers.measure(32, 10)
        num_bytes = 4 * readers.learner.parameter_counts().inference
        before = tensor_bytes()
        readers.read = None  # type: ignore[assignment]
        cells.append({"tasks": num_tasks, "milliseconds": 1000 * median(chain), "milliseconds_without": 1000 * median(plain),
                      "megabytes": num_bytes / 2**20, "reader_megabytes": (before - tensor_bytes()) / 2**20})  # fmt: skip
    return cells


def tensor_bytes() -> int:
    """Bytes of all tensors in memory."""
    gc.collect()
    storages = (item.untyped_storage() for item in gc.get_objects() if issubclass(type(item), Tensor))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
