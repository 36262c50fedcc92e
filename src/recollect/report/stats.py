"""Means, spreads, and whether one method is really ahead of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from recollect.report.collect import Variant

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean over common seeds of one variant's figure less another's, with its 95 % interval."""

    mean: float
    half_width: float | None
    """None with fewer than two common seeds: nothing can be said."""
    num_seeds: int
    over_tasks: float | None = None
    """With one seed: half of the interval over its tasks. It says nothing of other seeds."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    @property
    def is_ahead(self) -> bool:
        """Whether the interval lies above zero."""
        return self.is_clear and self.mean > 0

    def __str__(self) -> str:
        over = "" if self.over_tasks is None else f" (± {self.over_tasks:.1f} over tasks)"
        return f"{self.mean:+.1f}" + (over if self.half_width is None else f" ± {self.half_width:.1f}")


def known(values: Sequence[float | None]) -> list[float]:
    """The values, or nothing where one of them is undefined."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else []


def difference(one: Variant, other: Variant, evaluation: str, figure: str = "average_accuracy") -> Difference | None:
    """Paired by seed; None without a common seed."""
    mine, theirs = (dict(zip(v.seeds, v.figures(evaluation, figure), strict=True)) for v in (one, other))
    pairs = [(seed, mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    gaps = {seed: a - b for seed, a, b in pairs if a is not None and b is not None}
    found = of_gaps(list(gaps.values()))
    if found is None or found.num_seeds > 1:
        return found
    (seed,) = gaps
    each = [_by_task(v, seed, evaluation, figure) for v in (one, other)]
    return replace(found, over_tasks=half_width([a - b for a, b in zip(*each, strict=True)]))


def _by_task(variant: Variant, seed: int, evaluation: str, figure: str) -> list[float]:
    """What the mean over tasks is made of, after the last task; nothing for other figures."""
    matrix = next(result for result in variant.results if result["seed"] == seed)[evaluation]["matrix"]
    last = matrix[-1]
    if figure == "average_accuracy":
        return [cell for cell in last if cell is not None]
    if figure != "forgetting":
        return []
    best = [[row[task] for row in matrix[task:-1] if row[task] is not None] for task in range(len(last) - 1)]
    return [max(cells) - last[task] for task, cells in enumerate(best) if cells and last[task] is not None]


def of_gaps(gaps: Sequence[float]) -> Difference | None:
    """The difference that gaps seed by seed amount to; None without any."""
    return Difference(fmean(gaps), half_width(gaps), len(gaps)) if gaps else None


def half_width(values: Sequence[float]) -> float | None:
    """Half of Student's interval around the mean."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * stdev(values) / math.sqrt(len(values))


def best_two(variants: Sequence[Variant], evaluation: str) -> tuple[Variant | None, Variant | None]:
    """The best and the second best of some variants, each only if it is clearly ahead of all that rank below it.

    Seeds that all have are compared; the upper bound is not ranked; there is no second where there is no best.
    """
    ranked = [v for v in variants if v.method != "joint" and known(v.figures(evaluation, "average_accuracy"))]
    common = set.intersection(*(set(v.seeds) for v in ranked)) if ranked else set()
    if len(common) < 2 or len(ranked) < 2:
        return None, None

    def mean(v: Variant) -> float:
        values = zip(v.seeds, known(v.figures(evaluation, "average_accuracy")), strict=True)
        return fmean(value for seed, value in values if seed in common)

    ranked.sort(key=lambda v: -mean(v))
    found: list[Variant] = []
    for place in (0, 1):
        leads = [difference(ranked[place], other, evaluation) for other in ranked[place + 1 :]]
        if not leads or not all(lead is not None and lead.is_ahead for lead in leads):
            break
        found.append(ranked[place])
    return (found[0] if found else None), (found[1] if len(found) > 1 else None)
