"""Means, spreads, and whether one method is really ahead of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.half_width is None else f" ± {self.half_width:.1f}")


def known(values: Sequence[float | None]) -> list[float]:
    """The values, or nothing where one of them is undefined."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else []


def difference(one: Variant, other: Variant, evaluation: str, figure: str = "average_accuracy") -> Difference | None:
    """Paired by seed; None without a common seed."""
    mine, theirs = (dict(zip(v.seeds, v.figures(evaluation, figure), strict=True)) for v in (one, other))
    pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    gaps = [a - b for a, b in pairs if a is not None and b is not None]
    if not gaps:
        return None
    return Difference(fmean(gaps), half_width(gaps), len(gaps))


def half_width(values: Sequence[float]) -> float | None:
    """Half of Student's interval around the mean."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * stdev(values) / math.sqrt(len(values))


def best_two(variants: Sequence[Variant], evaluation: str) -> tuple[Variant | None, Variant | None]:
    """The best and the second best, each only where its lead over the next is clear; the upper bound is not ranked."""
    ranked = [v for v in variants if v.method != "joint" and known(v.figures(evaluation, "average_accuracy"))]
    ranked.sort(key=lambda v: -fmean(known(v.figures(evaluation, "average_accuracy"))))
    marks: list[Variant | None] = []
    for place in (0, 1):
        lead = difference(ranked[place], ranked[place + 1], evaluation) if len(ranked) > place + 1 else None
        marks.append(ranked[place] if lead is not None and lead.is_clear else None)
    return marks[0], marks[1]
