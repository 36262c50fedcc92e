"""Means, spreads, and whether one method is really ahead of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev

from recollect.report.collect import Variant

CONFIDENCE = 0.95
MAX_SEEDS = 20
"""Beyond so many seeds, no number is estimated."""


@dataclass(frozen=True)
class Difference:
    """The mean over common seeds of one variant's value minus another's, with its 95 % interval."""

    mean: float
    half_width: float | None
    """None with fewer than two common seeds: nothing can be concluded."""
    num_seeds: int
    over_tasks: float | None = None
    """With one seed: half of the interval over its tasks. It says nothing about other seeds."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    @property
    def is_ahead(self) -> bool:
        """Whether the interval lies above zero."""
        return self.is_clear and self.mean > 0

    @property
    def unsigned(self) -> str:
        """As text, for a sentence that says itself which of the two is higher."""
        return str(self)[1:]

    def __str__(self) -> str:
        over_tasks = "" if self.over_tasks is None else f" (± {self.over_tasks:.1f} over tasks)"
        return f"{self.mean:+.1f}" + (over_tasks if self.half_width is None else f" ± {self.half_width:.1f}")


def spread(values: Sequence[float | None], digits: int = 1) -> str:
    """Mean, with ± the standard deviation where there are several values; a dash where one is undefined."""
    defined = all_defined(values)
    if not defined:
        return "–"
    text = f"{fmean(defined):.{digits}f}"
    return f"{text} ± {stdev(defined):.{digits}f}" if len(defined) > 1 else text


def estimate(values: Sequence[float | None], digits: int = 1) -> str:
    """Mean, with ± half of its 95 % interval; a dash where a value is undefined.

    Two values are given themselves: their interval extends over thirteen standard errors and tells nothing.
    """
    defined = all_defined(values)
    if not defined:
        return "–"

    def show(value: float) -> str:
        return f"{round(value, digits) or 0.0:.{digits}f}"  # no minus before a zero

    if len(defined) == 2:
        return f"{show(fmean(defined))} ({show(min(defined))}, {show(max(defined))})"
    half = half_width(defined)
    return show(fmean(defined)) + ("" if half is None else f" ± {half:.{digits}f}")


def all_defined(values: Sequence[float | None]) -> list[float]:
    """The values; an empty list where one of them is undefined."""
    defined = [value for value in values if value is not None]
    return defined if len(defined) == len(values) else []


def difference(one: Variant, other: Variant, evaluation: str, metric: str = "average_accuracy") -> Difference | None:
    """Paired by seed; None without a common seed."""
    ours, theirs = (dict(zip(v.seeds, v.values(evaluation, metric), strict=True)) for v in (one, other))
    pairs = [(seed, ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    gaps = {seed: a - b for seed, a, b in pairs if a is not None and b is not None}
    summary = summarise_gaps(list(gaps.values()))
    if summary is None or summary.num_seeds > 1:
        return summary
    (seed,) = gaps
    per_task = [_values_per_task(v, seed, evaluation, metric) for v in (one, other)]
    return replace(summary, over_tasks=half_width([a - b for a, b in zip(*per_task, strict=True)]))


def _values_per_task(variant: Variant, seed: int, evaluation: str, metric: str) -> list[float]:
    """The values per task after the last task whose mean the metric is; empty for metrics that are no such mean."""
    matrix = next(result for result in variant.results if result["seed"] == seed)[evaluation]["matrix"]
    last = matrix[-1]
    if metric == "average_accuracy":
        return [cell for cell in last if cell is not None]
    if metric != "forgetting":
        return []
    earlier = [[row[task] for row in matrix[task:-1] if row[task] is not None] for task in range(len(last) - 1)]
    return [max(cells) - last[task] for task, cells in enumerate(earlier) if cells and last[task] is not None]


def chain_gain(v: Variant) -> Difference | None:
    """Accuracy through the chain minus accuracy without it, paired by seed; None for methods without a chain."""
    with_chain, without = (v.values(evaluation, "average_accuracy") for evaluation in ("til", "til_without_chain"))
    pairs = zip(with_chain, without, strict=True)
    return summarise_gaps([a - b for a, b in pairs if a is not None and b is not None])


def summarise_gaps(gaps: Sequence[float]) -> Difference | None:
    """The difference that gaps per seed amount to; None without any."""
    return Difference(fmean(gaps), half_width(gaps), len(gaps)) if gaps else None


def half_width(values: Sequence[float]) -> float | None:
    """Half of Student's interval around the mean."""
    if len(values) < 2:
        return None
    return student_quantile(len(values)) * stdev(values) / math.sqrt(len(values))


def seeds_to_exclude(value: float, gap: Difference) -> int | None:
    """How many seeds an interval takes to exclude a value, if mean and deviation stay; None if more than MAX_SEEDS.

    >>> seeds_to_exclude(0.0, Difference(mean=2.0, half_width=2.5, num_seeds=3))
    4
    """
    assert gap.half_width is not None, "one seed has no interval"
    deviation = gap.half_width * math.sqrt(gap.num_seeds) / student_quantile(gap.num_seeds)
    candidates = range(gap.num_seeds + 1, MAX_SEEDS + 1)
    return next((n for n in candidates if student_quantile(n) * deviation / math.sqrt(n) < abs(gap.mean - value)), None)


@cache
def student_quantile(num_values: int) -> float:
    """By how many standard errors the interval around a mean of this many values extends."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, num_values - 1))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least-squares line."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def best_two(variants: Sequence[Variant], evaluation: str) -> tuple[Variant | None, Variant | None]:
    """The best and the second best variant, each only if it is clearly ahead of all that rank below it.

    Variants are compared on the seeds that all have; joint training is not ranked; without a best there is no second.
    """
    ranked = [v for v in variants if v.method != "joint" and all_defined(v.values(evaluation, "average_accuracy"))]
    common = set.intersection(*(set(v.seeds) for v in ranked)) if ranked else set()
    if len(common) < 2 or len(ranked) < 2:
        return None, None

    def mean(v: Variant) -> float:
        values = zip(v.seeds, all_defined(v.values(evaluation, "average_accuracy")), strict=True)
        return fmean(value for seed, value in values if seed in common)

    ranked.sort(key=lambda v: -mean(v))
    best: list[Variant | None] = [None, None]
    for rank in (0, 1):
        gaps = [difference(ranked[rank], other, evaluation) for other in ranked[rank + 1 :]]
        if not gaps or not all(gap is not None and gap.is_ahead for gap in gaps):
            break
        best[rank] = ranked[rank]
    return best[0], best[1]
