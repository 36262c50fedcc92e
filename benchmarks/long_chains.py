"""What do 100 tasks cost at inference? Writes results/long-chains.json and docs/long-chains.md.

    python benchmarks/long_chains.py run                            measure (a few minutes on two cores)
    python benchmarks/long_chains.py compact DATA RUN...            results/compact.json: finished runs of rfe, and their chains compacted
    python benchmarks/long_chains.py page                           docs/long-chains.md from these results

ResNet-18 at full width, 32 pixels, tasks of two classes, no training: what a chain has learned does not change its speed. A pass through the
chain and the heads of all tasks takes turns with a pass through the bare backbone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from measuring.system import describe_machine
from measuring.timing import Work, report_progress, time_in_turn
from pages.experiments import RESULTS
from pages.long_chains import PAGE, page
from recollect.core import folded
from recollect.engine import Runtime
from recollect.engine.evaluation import evaluate
from recollect.methods import Learner, Schedule, build_learner, methods
from recollect.methods.rfe import RFELearner
from recollect.nets.resnet import ResNet18
from recollect.rng import Key
from recollect.runs import load_run
from recollect.runs.folder import code_version
from recollect.storage import write_json
from recollect.streams import TaskInfo

FILE, COMPACTED = RESULTS / "long-chains.json", RESULTS / "compact.json"
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


def measure_compacting(data_root: str, folder: str) -> dict[str, Any]:
    """A finished run, before and after its chain is compacted on the training images of its last task."""
    loaded = load_run(folder, data_root)
    learner, tasks, pixels = loaded.learner, loaded.stream.tasks, loaded.stream.pixels
    assert isinstance(learner, RFELearner)
    assert loaded.result is not None
    runtime = Runtime.choose("cpu", "fp32", 1)
    runtime.place(learner)
    images = pixels.normalise(tasks[-1].train.take(torch.arange(len(tasks[-1].train)))[0])
    x = pixels.normalise(tasks[0].test.take(torch.arange(32))[0])
    readers: dict[str, Callable[[Tensor], Any]] = {"bare": folded(learner.network.backbone, loaded.stream.image_shape)}
    rows: dict[str, dict[str, float]] = {}
    for name in ("trained", "compacted"):
        if name == "compacted":
            with torch.inference_mode():
                f = torch.cat([learner.network.backbone(part) for part in images.split(256)])
            learner.rfe.compact(images, f.clone(), learner.config.projection_dim)
        accuracies = evaluate(learner, tasks, "test", pixels, runtime)
        readers[name] = learner.reader(runtime.dtype)
        rows[name] = {
            key: fmean(value for value in accuracies[key] if value is not None)
            for key in ("til", "cil", "til_without_chain")
        }
        rows[name]["parameters"] = learner.parameter_counts().inference
    for batch, rounds in ((1, 100), (32, 20)):
        times = time_in_turn({name: _work(read, x[:batch]) for name, read in readers.items()}, rounds)
        for name in rows:
            rows[name][f"ratio_{batch}"] = median(c / b for c, b in zip(times[name], times["bare"], strict=True))
    return {**rows, "tasks": len(tasks), "seed": loaded.result["seed"], "command": loaded.result["command"],
            "run_commit": loaded.result["commit"], "commit": code_version(), "machine": describe_machine()}  # fmt: skip


def _work(function: Callable[[Tensor], Any], x: Tensor) -> Work:
    def work() -> None:
        with torch.inference_mode():
            function(x)

    return work


def main() -> None:
    match sys.argv[1:]:
        case ["run"]:
            write_json(FILE, measure())
        case ["compact", data_root, *folders]:
            write_json(COMPACTED, {"runs": [measure_compacting(data_root, folder) for folder in folders]})
        case ["page"]:
            pass
        case _:
            sys.exit(__doc__)
    PAGE.write_text(page(json.loads(FILE.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
