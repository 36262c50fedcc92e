"""What do 100 tasks cost at inference? Writes results/long-chains.json and docs/long-chains.md.

    python benchmarks/long_chains.py run     measure (a few minutes on two cores)
    python benchmarks/long_chains.py page    docs/long-chains.md from these results

ResNet-18 at full width, 32 pixels, tasks of two classes, no training: what a chain has learned does not change its speed. A pass through the
chain and the heads of all tasks takes turns with a pass through the bare backbone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from measuring.system import describe_machine
from measuring.timing import Work, report_progress, time_in_turn
from pages.experiments import RESULTS
from pages.long_chains import PAGE, page
from recollect.core import folded
from recollect.engine import Runtime
from recollect.methods import Learner, Schedule, build_learner, methods
from recollect.nets.resnet import ResNet18
from recollect.rng import Key
from recollect.runs.folder import code_version
from recollect.storage import write_json
from recollect.streams import TaskInfo

FILE = RESULTS / "long-chains.json"
METHODS = ("rfe", "rfe-affine")
LENGTHS = (10, 20, 50, 100)
ROUNDS = {1: 100, 32: 12, 256: 5}
SHAPE = (3, 32, 32)


def grow(method: str, num_tasks: int) -> Learner[Any]:
    """A learner that has begun so many tasks."""
    row, key = methods()[method], Key(0)
    with key.initialising():
        backbone = ResNet18(3, 64)
    learner = build_learner(row.learner, row.config, backbone, SHAPE, Schedule(1, 5e-4), key)
    for index in range(num_tasks):
        learner.begin_task(TaskInfo(index, str(index), (f"{index} a", f"{index} b")))
    return learner.eval()


def measure() -> dict[str, Any]:
    runtime, cells = Runtime.choose("auto", "fp32"), []
    for num_tasks in LENGTHS:
        for method in METHODS:
            report_progress(f"{method}, {num_tasks} tasks")
            learner = grow(method, num_tasks)
            runtime.place(learner)
            read, backbone = learner.reader(runtime.dtype), folded(learner.network.backbone, SHAPE, runtime.dtype)
            for batch, rounds in ROUNDS.items():
                x = torch.randn(batch, *SHAPE).to(runtime.device)
                times = time_in_turn({"chain": _work(read, x), "bare": _work(backbone, x)}, rounds)
                ratio = median(c / b for c, b in zip(times["chain"], times["bare"], strict=True))
                cells.append({"method": method, "tasks": num_tasks, "batch": batch, "ratio": ratio,
                              "milliseconds": 1000 * median(times["chain"]),
                              "parameters": learner.parameter_counts().inference})  # fmt: skip
    return {"machine": describe_machine(), "commit": code_version(), "cells": cells}


def _work(function: Callable[[Tensor], Any], x: Tensor) -> Work:
    def work() -> None:
        with torch.inference_mode():
            function(x)

    return work


def main() -> None:
    match sys.argv[1:]:
        case ["run"]:
            write_json(FILE, measure())
        case ["page"]:
            pass
        case _:
            sys.exit(__doc__)
    PAGE.write_text(page(json.loads(FILE.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
