"""Paired differences have Student's interval, and only clear leads are marked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from recollect.report.collect import collect
from recollect.report.stats import best_two, difference, slope, spread
from tests.report.results import result_of

QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182}  # Student's t at 97.5 % by number of seeds, from a printed table
LEVELS = (("rfe", 50.0), ("lwf", 40.0), ("finetune", 20.0), ("joint", 90.0))


@pytest.mark.parametrize("gaps", [(1.0, 2.0), (1.0, 2.0, 3.0), (0.1, -0.2, 0.4, 5.0)])
def test_paired_differences_have_students_interval(gaps: tuple[float, ...]) -> None:
    results = [result_of("rfe", seed, 40.0 + seed + gap) for seed, gap in enumerate(gaps)]
    results += [result_of("finetune", seed, 40.0 + seed) for seed in range(len(gaps))]
    other, one = collect(results)[0].variants
    gap = difference(one, other, "til")
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1))
    assert gap is not None
    assert gap.half_width is not None
    assert gap.mean == pytest.approx(mean)
    assert gap.half_width == pytest.approx(QUANTILES[len(gaps)] * deviation / math.sqrt(len(gaps)), rel=1e-3)
    assert gap.is_clear == (mean > gap.half_width)


def marked(results: list[dict[str, Any]]) -> tuple[str, str]:
    best, second = best_two(collect(results)[0].variants, "til")
    return (best.method if best else ""), (second.method if second else "")


def test_clear_leads_are_marked_and_joint_training_is_not_ranked() -> None:
    results = [result_of(method, seed, level + seed) for seed in range(3) for method, level in LEVELS]
    assert marked(results) == ("rfe", "lwf")


def test_one_seed_marks_nothing() -> None:
    assert marked([result_of(method, 0, level) for method, level in LEVELS]) == ("", "")


def test_a_lead_that_is_not_clear_over_every_other_method_is_not_marked() -> None:
    results = [result_of(method, seed, level + seed) for seed in range(3) for method, level in LEVELS]
    noisy = [result_of("si", seed, 45.0 + 60 * (seed - 1)) for seed in range(3)]
    assert marked(results + noisy) == ("", "")


def test_methods_are_ranked_on_the_seeds_that_all_have() -> None:
    """rfe's further seeds are lucky; on the common ones it is clearly behind."""
    results = [result_of("rfe", seed, value) for seed, value in enumerate([40.0, 41.0, 90.0, 90.0, 90.0])]
    results += [result_of("finetune", seed, value) for seed, value in enumerate([50.0, 51.0])]
    assert marked(results) == ("finetune", "")


def test_spread_is_mean_and_deviation_or_a_dash() -> None:
    assert spread([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert spread([1.25]) == "1.2"
    assert spread([1.0, None]) == "–"
    assert spread([]) == "–"


def test_slope_of_a_line() -> None:
    assert slope([1, 2, 4], [3.0, 5.0, 9.0]) == pytest.approx(2.0)
