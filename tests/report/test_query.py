"""Questions to experiments."""

from __future__ import annotations

from recollect.report.collect import collect
from recollect.report.query import get_variant, mean_accuracy, on_common_seeds
from tests.report.results import result_of


def test_means_are_compared_on_the_seeds_that_all_variants_have() -> None:
    results = [result_of("rfe", seed, til) for seed, til in enumerate((50.0, 40.0, 30.0))]
    results += [result_of("rfe", seed, til, alpha=3.0) for seed, til in ((0, 45.0), (5, 99.0))]
    (experiment,) = collect(results)
    variants = [get_variant(experiment, "rfe"), get_variant(experiment, "rfe", alpha=3.0)]
    assert [mean_accuracy(v, "til") for v in variants] == [40.0, 72.0]
    compared = on_common_seeds(variants)
    assert [v.seeds for v in compared] == [(0,), (0,)]
    assert [mean_accuracy(v, "til") for v in compared] == [50.0, 45.0]
