"""The paper's claims are judged by intervals: supported, refuted or inconclusive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recollect.report.claims import claims
from recollect.report.collect import collect
from recollect.report.verdict import INCONCLUSIVE, REFUTED, SUPPORTED, Claim
from tests.report.results import result_of

NOISE = (0.0, 0.1, -0.1)  # per seed; over three seeds half an interval of 4.303 * 0.1 / sqrt(3) = 0.25
WITH_MEMORY = ("er", "derpp", "tamil", "agem", "er-mkd", "rfe-p", "rfe-b")


def claims_of(results: Iterable[dict[str, Any]]) -> dict[str, Claim]:
    """By id, of results that are one experiment with one number of exemplars."""
    (experiment,) = collect(results)
    judged = list(claims(experiment))
    assert len({claim.id for claim in judged}) == len(judged)
    return {claim.id: claim for claim in judged}


def claims_with(**accuracies: float | tuple[float, ...]) -> dict[str, Claim]:
    """With RFE at 50 without noise; other methods at a mean with a little noise, or with given values per seed."""
    results = [result_of("rfe", seed, 50.0, chain=48.0 + NOISE[seed]) for seed in range(3)]
    for name, value in accuracies.items():
        method = name.replace("_", "-")
        settings = {"memory": 500, "samples": 500} if method in WITH_MEMORY else {}
        for seed in range(3):
            til = value[seed] if isinstance(value, tuple) else value + NOISE[seed]
            results.append(result_of(method, seed, til, **settings))
    return claims_of(results)


def test_rfe_ahead_of_or_level_with_all_rivals_is_supported_and_behind_one_is_refuted() -> None:
    ahead = claims_with(er=40.0, derpp=49.0)["rfe-level-with-rehearsal"]
    assert ahead.verdict == SUPPORTED
    assert "ahead: 1.0 ± 0.2 above derpp (500)" in ahead.measured
    assert "3 seeds" in ahead.measured
    level = claims_with(er=40.0, derpp=51.0)["rfe-level-with-rehearsal"]
    assert level.verdict == SUPPORTED  # within two points
    assert "level: 1.0 ± 0.2 below derpp (500)" in level.measured
    behind = claims_with(er=40.0, derpp=53.0)["rfe-level-with-rehearsal"]
    assert behind.verdict == REFUTED
    assert "behind: 3.0 ± 0.2 below derpp (500)" in behind.measured


def test_inconclusive_rivals_are_named_and_many_clear_ones_are_summarised() -> None:
    clear = {"er": 40.0, "derpp": 41.0, "tamil": 42.0, "agem": 43.0}
    claim = claims_with(**clear, er_mkd=(44.0, 51.0, 49.0))["rfe-level-with-rehearsal"]
    assert "ahead 4 of 5, from 7.0 ± 0.2 above agem (500) to 10.0 ± 0.2 above er (500)" in claim.measured
    assert "inconclusive: 2.0 ± 9.0 above er-mkd (500)" in claim.measured


def test_forms_with_exemplars_are_compared_with_rehearsal_of_as_many() -> None:
    judged = claims_with(er=40.0, derpp=50.5, rfe_p=51.0, rfe_b=50.0)
    assert judged["rfe-p-above-rehearsal-til"].verdict == SUPPORTED
    assert judged["rfe-b-above-rehearsal-til"].verdict == REFUTED


def test_each_number_of_exemplars_is_judged_separately() -> None:
    results = [result_of("rfe", seed, 50.0) for seed in range(3)]
    results += [result_of("er", seed, 40.0 + NOISE[seed], memory=200, samples=200) for seed in range(3)]
    results += [result_of("er", seed, 60.0 + NOISE[seed], memory=500, samples=500) for seed in range(3)]
    (experiment,) = collect(results)
    verdicts = {(claim.id, claim.memory): claim.verdict for claim in claims(experiment)}
    assert verdicts["rfe-level-with-rehearsal", 200] == SUPPORTED
    assert verdicts["rfe-level-with-rehearsal", 500] == REFUTED


def test_comparable_means_level_with_the_median_of_the_rivals() -> None:
    cil = {"er": 20.0, "derpp": 25.0, "tamil": 40.0, "rfe-p": 24.0, "rfe-b": 20.0}
    judged = claims_of(
        result_of(name, seed, 50.0, value + NOISE[seed] * (name == "derpp"), memory=500, samples=500)
        for name, value in cil.items()
        for seed in range(3)
    )
    claim = judged["rfe-p-comparable-to-rehearsal"]
    assert (claim.verdict, claim.measured) == (
        SUPPORTED,
        "level: 1.0 ± 0.2 below the median of 3 (3 seeds); 16.0 ± 0.0 below tamil (500), the best of them",
    )
    claim = judged["rfe-b-comparable-to-rehearsal"]
    assert (claim.verdict, claim.measured) == (
        REFUTED,
        "behind: 5.0 ± 0.2 below the median of 3 (3 seeds); 20.0 ± 0.0 below tamil (500), the best of them",
    )


def test_an_interval_across_zero_is_inconclusive() -> None:
    claim = claims_with(er=40.0, derpp=(44.0, 51.0, 49.0))["rfe-level-with-rehearsal"]
    assert claim.verdict == INCONCLUSIVE
    # gaps 6, -1, 1: deviation 3.606, times 4.303 / sqrt(3)
    assert "inconclusive: 2.0 ± 9.0 above derpp (500)" in claim.measured


def test_an_inconclusive_claim_says_how_many_seeds_would_decide() -> None:
    # gaps 6, -1, 1: mean 2, deviation 3.606; -2 is excluded once t(n) * 3.606 / sqrt(n) < 4: 4.48 for 5, 3.78 for 6
    claim = claims_with(er=40.0, derpp=(44.0, 51.0, 49.0))["rfe-level-with-rehearsal"]
    assert claim.needed == "about 6 seeds, if means and deviations stay"
    assert claim.evidence.endswith(f"{claim.measured}. To decide: {claim.needed}")
    # the same against er-mkd with a mean of -1.9, which is only 0.1 from -2
    close = claims_with(derpp=(44.0, 51.0, 49.0), er_mkd=(47.9, 54.9, 52.9))["rfe-level-with-rehearsal"]
    assert close.needed == "more than 20 seeds"
    assert claims_with(er=40.0)["rfe-level-with-rehearsal"].needed == ""
    level = claims_with(rfe_e2e=(45.0, 52.0, 50.0))["end-to-end-level"]  # gaps -5, 2, 0: mean -1, 1 from -2
    assert level.verdict == INCONCLUSIVE
    assert level.needed == "more than 20 seeds"


def test_one_seed_is_inconclusive() -> None:
    judged = claims_of([result_of("rfe", 0, 50.0), result_of("er", 0, 10.0, memory=500, samples=500)])
    claim = judged["rfe-level-with-rehearsal"]
    measured = "inconclusive: 40.0 (± 0.0 over tasks) above er (500) (1 seed)"
    assert (claim.verdict, claim.measured) == (INCONCLUSIVE, measured)
    assert claim.needed == "more seeds, for an interval"


def test_with_one_seed_the_interval_is_over_its_tasks() -> None:
    rfe, er = result_of("rfe", 0, 50.0), result_of("er", 0, 46.0, memory=500, samples=500)
    # minus 46: 1, 3, 4, 5, 7; deviation 2.236, t for 5 values is 2.776
    rfe["til"]["matrix"][-1] = [47.0, 49.0, 50.0, 51.0, 53.0]
    claim = claims_of([rfe, er])["rfe-level-with-rehearsal"]
    assert claim.verdict == INCONCLUSIVE
    assert "4.0 (± 2.8 over tasks) above er (500)" in claim.measured


def test_claims_are_judged_only_on_streams_for_which_the_paper_makes_them() -> None:
    results = [
        result_of("rfe", 0, 50.0, stream="split-cifar10"),
        result_of("er", 0, 46.0, stream="split-cifar10", samples=500),
    ]
    assert not claims_of(results)


def test_forms_with_exemplars_are_compared_with_rfe() -> None:
    judged = claims_with(rfe_p=51.0, rfe_b=49.0)
    assert (judged["rfe-p-above-rfe"].verdict, judged["rfe-p-above-rfe"].memory) == (SUPPORTED, 500)
    assert judged["rfe-b-above-rfe"].verdict == REFUTED


def test_as_accurate_as_means_the_whole_interval_within_two_points() -> None:
    assert claims_with(rfe_e2e=49.0)["end-to-end-level"].verdict == SUPPORTED
    assert claims_with(rfe_e2e=47.0)["end-to-end-level"].verdict == REFUTED
    assert claims_with(rfe_e2e=48.1)["end-to-end-level"].verdict == INCONCLUSIVE


def test_retrospector_forms_are_compared_with_rfe() -> None:
    judged = claims_with(rfe_mlp_residual=51.0, rfe_no_aux=51.0, expansion=20.0)
    assert judged["gated-level-with-mlp"].verdict == SUPPORTED
    assert judged["auxiliary-needed"].verdict == REFUTED
    assert judged["above-expansion"].verdict == SUPPORTED


def test_less_forgetting_is_judged_over_many_tasks() -> None:
    many = {"stream.tasks": 10}
    ours = [result_of("rfe", seed, 50.0, **many) for seed in range(3)]
    er = [result_of("er", seed, 40.0, memory=500, samples=500, **many) for seed in range(3)]
    for seed, rival in enumerate(er):
        rival["til"]["forgetting"] = 9.0 + NOISE[seed]
    claim = claims_of([*ours, *er])["rfe-forgets-less"]
    assert claim.verdict == SUPPORTED  # ours forgets 4: every task but the last ends 4 below its best
    assert claim.measured.startswith("ahead: 5.0 ± 0.2 less than er (500)")


def test_a_rival_that_improves_on_old_tasks_counts_and_is_also_left_out_in_a_remark() -> None:
    many = {"stream.tasks": 10}
    results = [result_of("rfe", seed, 50.0, **many) for seed in range(3)]
    results += [result_of("derpp", seed, 40.0, memory=500, samples=500, **many) for seed in range(3)]
    for seed in range(3):
        results.append(result_of("er", seed, 40.0, memory=500, samples=500, **many))
        results[-1]["til"]["forgetting"] = -3.0
    claim = claims_of(results)["rfe-forgets-less"]
    assert claim.verdict == REFUTED
    assert "behind: 7.0 ± 0.0 more than er (500)" in claim.measured
    remark = "; without er (500), which is better on old tasks at the end than when they were new: inconclusive"
    assert claim.measured.endswith(remark)


def test_over_20_tasks_mean_accuracy_over_time_is_judged() -> None:
    results = []
    for method, mean in (("rfe", 50.0), ("er", 48.0), ("derpp", 53.0)):
        for seed in range(3):
            settings = {} if method == "rfe" else {"memory": 500, "samples": 500}
            results.append(result_of(method, seed, 50.0, **settings, **{"stream.tasks": 20}))
            results[-1]["til"]["incremental_accuracy"] = mean + NOISE[seed] * (method != "rfe")
    claim = claims_of(results)["rfe-above-rehearsal-over-time"]
    measured = "ahead: 2.0 ± 0.2 above er (500); behind: 3.0 ± 0.2 below derpp (500) (3 seeds)"
    assert (claim.verdict, claim.measured) == (REFUTED, measured)


def test_the_chain_is_judged_at_the_paper_s_alpha() -> None:
    claim = claims_with()["rfe-chain-gain"]
    assert (claim.verdict, claim.measured) == (SUPPORTED, "ahead: 2.0 ± 0.2 above rfe without it (3 seeds)")


def results_with_drift(rectified: float) -> list[dict[str, Any]]:
    """RFE at α = 0, with drifted features at 0.5 and rectified ones at a given distance, plus noise per seed."""
    results = [result_of("rfe", seed, 50.0, chain=30.0 + NOISE[seed], drift=True, alpha=0.0) for seed in range(3)]
    for noise, result in zip(NOISE, results, strict=True):
        result["drift"]["rectified"] = [[rectified + noise if j < i else None for j in range(5)] for i in range(5)]
    return results


def test_the_chain_is_judged_by_accuracy_and_by_distance_at_alpha_0() -> None:
    judged = claims_of(results_with_drift(0.2))
    assert judged["rfe-chain-gain-alpha-0"].measured.startswith("ahead: 20.0 ± 0.2")
    assert judged["rectified-nearer"].verdict == SUPPORTED
    measured = "0.50 → 0.20, nearer by 0.30 ± 0.25; 30 of 30 pairs of tasks over all seeds are nearer (3 seeds)"
    assert judged["rectified-nearer"].measured == measured
    assert claims_of(results_with_drift(0.9))["rectified-nearer"].verdict == REFUTED


def test_distances_of_one_seed_are_inconclusive() -> None:
    claim = claims_of(results_with_drift(0.2)[:1])["rectified-nearer"]
    measured = "0.50 → 0.20, nearer by 0.30; 10 of 10 pairs of tasks over all seeds are nearer (1 seed)"
    assert (claim.verdict, claim.measured) == (INCONCLUSIVE, measured)
