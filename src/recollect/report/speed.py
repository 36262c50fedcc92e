"""Statistics of the speed benchmark (results/bench.json), and the paper's claims about time.

The benchmark times pieces of training in turn with a bare PyTorch loop, U. A whole task of RFE is both of its stages:
the second stage is timed with few and with many epochs, from which the cost of a step and of a cached view follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from recollect.report.verdict import INCONCLUSIVE, REFUTED, SUPPORTED, Claim

TASK_IMAGES, EPOCHS = 9000, 40
"""A task of split-cifar100 without its validation images; the paper's epochs."""
MEMORY, VIEWS = 500, 4
"""Exemplars, and cached views of each image, of the timed methods."""
STAGED = ("rfe", "rfe-p", "rfe-b")
"""Methods with a second stage, which is timed with few and with many epochs."""
STAGE_2 = {"stage 2, few epochs": 2, "stage 2, many epochs": 42}
SIMILAR, MODERATE = 1.25, 1.65
"""What counts as about as long, and as moderately longer; the paper's table has up to 1.61."""
Seconds = Mapping[str, Sequence[float]]


def speed_ratios(seconds: Seconds, unit_seconds: Seconds) -> dict[str, list[float]]:
    """Per round, images per second over U's; for RFE also of both stages together."""
    inverse = {
        name: [time / unit for time, unit in zip(times, unit_seconds[name], strict=True)]
        for name, times in seconds.items()
    }
    ratios = {name: [1 / value for value in values] for name, values in inverse.items() if "stage 2" not in name}
    for method in STAGED:
        if f"{method}, stage 1" not in inverse:
            continue  # a quick measurement has some of them
        stages = [inverse[f"{method}, {stage}"] for stage in ("stage 1", *STAGE_2)]
        ratios[f"{method}, whole task"] = [
            _whole_task_ratio(method, *round_times) for round_times in zip(*stages, strict=True)
        ]
    return ratios


def _whole_task_ratio(method: str, stage_1: float, few: float, many: float) -> float:
    short, long = STAGE_2.values()
    step = max(many - few, 0.0) / (long - short)  # one image in stage 2
    view = max(few - short * step, 0.0)  # one view of an image through both networks
    num_views = TASK_IMAGES * VIEWS + (0 if method == "rfe" else MEMORY * (VIEWS + 1))
    total = TASK_IMAGES * EPOCHS * (stage_1 + step) + num_views * view
    return TASK_IMAGES * EPOCHS / total


def time_claims(bench: Mapping[str, Any], run_ratios: Mapping[str, float | None]) -> list[Claim]:
    """The paper's claims about training and inference time; `run_ratios` are training times of whole runs over ER's."""
    ratios = speed_ratios(bench["training"]["seconds"], bench["training"]["unit_seconds"])
    judged = []
    for method in STAGED:
        limit = SIMILAR if method == "rfe" else MODERATE
        claim = "about as long as ER" if method == "rfe" else "moderately longer than ER"
        times = [er / own for er, own in zip(ratios["er"], ratios[f"{method}, whole task"], strict=True)]
        low, high, of_run = min(times), max(times), run_ratios.get(method)
        verdict = REFUTED if low > limit else SUPPORTED if max(high, of_run or 0.0) <= limit else INCONCLUSIVE
        measured = (
            f"{median(times):.2f} of ER's time per image, both stages at the second task, {low:.2f} to {high:.2f} over "
            f"{len(times)} rounds on a machine with other work, with the cached views that are the default here and "
            "not the paper's ([speed](speed.md))"
        )
        measured += f"; {of_run:.2f} over the 10 tasks of Tiny ImageNet, each run timed once" if of_run else ""
        text = f"Training {method.upper()} takes {claim} (at most {limit:g} times as long)"
        needed = "whole runs of both, timed on a machine without other work" if verdict == INCONCLUSIVE else ""
        judged.append(Claim(f"{method}-training-time", text, verdict, measured, needed=needed))
    inference = [cell["ratio"] for cell in bench["inference"] if cell["tasks"] == 10]
    text = "Inference through the chain of 10 tasks takes moderately longer than without it"
    measured = f"{min(inference):.2f} to {max(inference):.2f} of the time without it, over batch sizes and precisions"
    verdict = SUPPORTED if max(inference) <= MODERATE else REFUTED
    text, measured = f"{text} (at most {MODERATE:g} times as long)", f"{measured} ([speed](speed.md))"
    return [*judged, Claim("inference-time", text, verdict, measured)]
