"""Questions to experiments: which variants, and what accuracy they had when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from recollect.report.collect import Experiment, Variant
from recollect.report.stats import all_defined


def select(experiment: Experiment, keep: Callable[[Variant], bool]) -> Experiment:
    """The experiment with some of its variants."""
    return replace(experiment, variants=tuple(v for v in experiment.variants if keep(v)))


def find_variant(experiment: Experiment, method: str, memory: int = 0, **options: Any) -> Variant | None:
    """The variant with exactly these options besides the defaults; None without one."""
    for v in experiment.variants:
        if (v.method, v.memory, dict(v.options)) == (method, memory, options):
            return v
    return None


def get_variant(experiment: Experiment, method: str, memory: int = 0, **options: Any) -> Variant:
    """As `find_variant`; without one a LookupError that names it."""
    v = find_variant(experiment, method, memory, **options)
    if v is None:
        raise LookupError(f"no results of {method} with {memory} exemplars and {options} in {experiment.title}")
    return v


def on_common_seeds(variants: Sequence[Variant]) -> list[Variant]:
    """The variants with the results of the seeds that all of them were run with, so that their means compare."""
    common = set.intersection(*({*v.seeds} for v in variants))
    return [replace(v, results=tuple(result for result in v.results if result["seed"] in common)) for v in variants]


def mean_accuracy(v: Variant, evaluation: str) -> float:
    """Average accuracy after the last task, mean over seeds."""
    return fmean(all_defined(v.values(evaluation, "average_accuracy")))


def accuracy_over_time(v: Variant, evaluation: str) -> list[float]:
    """After each task the mean accuracy on the tasks learned so far, mean over seeds; NaN where one has no value."""
    return [fmean(column) for column in zip(*accuracy_over_time_per_seed(v, evaluation), strict=True)]


def accuracy_over_time_per_seed(v: Variant, evaluation: str) -> list[list[float]]:
    """One row per seed; with fixed heads the cells of future tasks are left out."""
    matrices = [result[evaluation]["matrix"] for result in v.results]
    return [[_mean([cell for cell in row[: i + 1] if cell is not None]) for i, row in enumerate(m)] for m in matrices]


def accuracy_when_new(v: Variant, evaluation: str) -> float:
    """The accuracy on each task right after it was learned, mean over tasks and seeds."""
    return fmean(fmean(row[i] for i, row in enumerate(result[evaluation]["matrix"])) for result in v.results)


def newest_task_accuracy(v: Variant, evaluation: str) -> float:
    """The accuracy on the last task, mean over seeds."""
    return fmean(result[evaluation]["matrix"][-1][-1] for result in v.results)


def validation_accuracy(v: Variant) -> float:
    """Task-incremental accuracy on validation images, mean over seeds."""
    return fmean(result["validation"]["til"] for result in v.results)


def _mean(cells: list[float]) -> float:
    return fmean(cells) if cells else float("nan")
