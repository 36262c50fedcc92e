"""Verdicts on claims: a claim is supported, refuted or inconclusive, by the intervals of the differences behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recollect.report.stats import MAX_SEEDS, Difference, seeds_to_exclude

SUPPORTED, REFUTED, INCONCLUSIVE = "supported", "refuted", "inconclusive"
LEVEL_POINTS = 2.0
"""Percentage points within which two accuracies count as level."""
FIRST_INTERVAL = "more seeds, for an interval"
MAX_LISTED = 3
"""Methods that are ahead or level are listed up to this number, and summarised beyond it."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what the results say about it."""

    id: str
    """Together with `memory` unique in an experiment."""
    text: str
    verdict: str
    measured: str
    memory: int | None = None
    """The number of exemplars that it is about; None where it is about no particular number."""
    needed: str = ""
    """What it would take to decide, where the verdict is inconclusive."""

    @property
    def evidence(self) -> str:
        """What was measured and, where that does not decide, what would."""
        return f"{self.measured}. To decide: {self.needed}" if self.needed else self.measured


@dataclass(frozen=True)
class Comparison:
    """How a positive difference is described, and a negative one."""

    positive: str
    negative: str

    def describe(self, gap: Difference, name: str) -> str:
        return f"{gap.unsigned} {self.positive if gap.mean >= 0 else self.negative} {name}"


ABOVE_OR_BELOW = Comparison("above", "below")
LESS_OR_MORE = Comparison("less than", "more than")


def judge(gaps: Sequence[Difference], margin: float = 0.0) -> str:
    """The verdict on a claim that all differences are positive or, with a margin, not further below zero than it."""
    intervals = [(gap.mean - gap.half_width, gap.mean + gap.half_width) for gap in gaps if gap.half_width is not None]
    if any(high < -margin for _, high in intervals):
        return REFUTED
    is_complete = len(intervals) == len(gaps)
    return SUPPORTED if is_complete and all(low > -margin for low, _ in intervals) else INCONCLUSIVE


def judge_all_ahead(
    claim_id: str,
    text: str,
    differences: Mapping[str, Difference | None],
    memory: int | None = None,
    *,
    comparison: Comparison = ABOVE_OR_BELOW,
    margin: float = 0.0,
) -> Iterator[Claim]:
    """The claim that a method is ahead of every rival named, or level with it; nothing where none can be compared."""
    gaps = {name: gap for name, gap in differences.items() if gap is not None}
    if gaps:
        verdict = judge(list(gaps.values()), margin)
        undecided = [(gap, -margin) for gap in gaps.values() if judge([gap], margin) == INCONCLUSIVE]
        yield Claim(claim_id, text, verdict, _describe(gaps, comparison, margin), memory, needed(verdict, undecided))


def judge_level(claim_id: str, text: str, gap: Difference | None) -> Claim:
    """The claim that two methods are equally accurate: the whole interval lies within the margin."""
    if gap is None or gap.half_width is None:
        measured = f"{gap} (1 seed)" if gap else "no common seed"
        return Claim(claim_id, text, INCONCLUSIVE, measured, needed=FIRST_INTERVAL if gap else "common seeds")
    low, high = gap.mean - gap.half_width, gap.mean + gap.half_width
    is_apart = low > LEVEL_POINTS or high < -LEVEL_POINTS
    verdict = SUPPORTED if max(-low, high) <= LEVEL_POINTS else REFUTED if is_apart else INCONCLUSIVE
    nearest = math.copysign(LEVEL_POINTS, gap.mean)
    measured = f"{gap} ({count_seeds([gap])})"
    return Claim(claim_id, text, verdict, measured, needed=needed(verdict, [(gap, nearest)]))


def needed(verdict: str, gaps: Sequence[tuple[Difference, float]]) -> str:
    """What it takes until every interval excludes the value beside it; nothing where the verdict is clear."""
    if verdict != INCONCLUSIVE:
        return ""
    if any(gap.half_width is None for gap, _ in gaps):
        return FIRST_INTERVAL
    numbers = [seeds_to_exclude(value, gap) for gap, value in gaps]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return f"more than {MAX_SEEDS} seeds"
    return f"about {max(known)} seeds, if means and deviations stay"


def count_seeds(gaps: Sequence[Difference]) -> str:
    """How many seeds the differences are over, as `3 seeds` or `1 to 3 seeds`."""
    numbers = sorted({gap.num_seeds for gap in gaps})
    span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{span} seed{'' if numbers[-1] == 1 else 's'}"


def _describe(gaps: Mapping[str, Difference], comparison: Comparison, margin: float) -> str:
    """Which rivals the method is ahead of, level with, behind, and which are inconclusive."""
    kinds: dict[str, list[tuple[float, str]]] = {"ahead": [], "level": [], INCONCLUSIVE: [], "behind": []}
    names = {SUPPORTED: "level", REFUTED: "behind", INCONCLUSIVE: INCONCLUSIVE}
    for name, gap in gaps.items():
        kind = "ahead" if gap.is_ahead else names[judge([gap], margin)]
        kinds[kind].append((gap.mean, comparison.describe(gap, name)))
    parts = []
    for kind, group in kinds.items():
        group.sort()
        if kind in ("ahead", "level") and len(group) > MAX_LISTED:
            parts.append(f"{kind} {len(group)} of {len(gaps)}, from {group[0][1]} to {group[-1][1]}")
        elif group:
            parts.append(f"{kind}: {', '.join(text for _, text in group)}")
    return f"{'; '.join(parts)} ({count_seeds(list(gaps.values()))})"
