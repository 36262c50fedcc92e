"""Claims are judged by their intervals: all ahead, one behind, or not to be told."""

from __future__ import annotations

from typing import Any

from recollect.report.claims import FAILS, HOLDS, OPEN, Claim, claims
from recollect.report.collect import collect
from tests.report.results import result_of

NOISE = (0.0, 0.1, -0.1)  # seed by seed; over three seeds half an interval of 4.303 * 0.1 / sqrt(3) = 0.25


def judged(**accuracies: float | tuple[float, ...]) -> dict[str, Claim]:
    """Claims on methods of given accuracy: RFE's at 50 without noise, others with a little, or seed by seed."""
    found: list[dict[str, Any]] = [result_of("rfe", seed, 50.0, chain=48.0 + NOISE[seed]) for seed in range(3)]
    for name, value in accuracies.items():
        method = name.replace("_", "-")
        for seed in range(3):
            til = value[seed] if isinstance(value, tuple) else value + NOISE[seed]
            keeps = method in ("er", "derpp", "tamil", "rfe-p", "rfe-b")
            settings = {"memory": 500, "samples": 500} if keeps else {}
            found.append(result_of(method, seed, til, **settings))
    (experiment,) = collect(found)
    return {claim.text: claim for claim in claims(experiment)}


def claim_of(found: dict[str, Claim], words: str) -> Claim:
    (claim,) = [claim for text, claim in found.items() if words in text]
    return claim


def test_ahead_of_all_holds_and_behind_one_does_not() -> None:
    words = "more accurate than every rehearsal"
    ahead = claim_of(judged(er=40.0, derpp=49.0), words)
    assert ahead.verdict == HOLDS
    assert "+1.0 ± 0.2 over derpp (500)" in ahead.found
    assert "3 seeds" in ahead.found
    behind = claim_of(judged(er=40.0, derpp=51.0), words)
    assert behind.verdict == FAILS
    assert "behind: -1.0 ± 0.2 over derpp (500)" in behind.found


def test_an_interval_across_zero_cannot_be_told() -> None:
    claim = claim_of(judged(er=40.0, derpp=(44.0, 51.0, 49.0)), "more accurate than every rehearsal")
    assert claim.verdict == OPEN
    assert "open: +2.0 ± 9.0 over derpp (500)" in claim.found  # gaps 6, -1, 1: deviation 3.606, times 4.303 / sqrt(3)


def test_one_seed_tells_nothing() -> None:
    (experiment,) = collect([result_of("rfe", 0, 50.0), result_of("er", 0, 10.0, memory=500, samples=500)])
    found = {claim.text: claim for claim in claims(experiment)}
    claim = claim_of(found, "more accurate than every rehearsal")
    assert (claim.verdict, claim.found) == (OPEN, "open: +40.0 (± 0.0 over tasks) over er (500) (1 seed)")


def test_with_one_seed_the_interval_is_over_its_tasks() -> None:
    rfe, er = result_of("rfe", 0, 50.0), result_of("er", 0, 46.0, memory=500, samples=500)
    rfe["til"]["matrix"][-1] = [
        47.0,
        49.0,
        50.0,
        51.0,
        53.0,
    ]  # less 46: 1, 3, 4, 5, 7; deviation 2.236, t of 5 is 2.776
    (experiment,) = collect([rfe, er])
    claim = claim_of({each.text: each for each in claims(experiment)}, "more accurate than every rehearsal")
    assert claim.verdict == OPEN
    assert "+4.0 (± 2.8 over tasks) over er (500)" in claim.found


def test_claims_are_made_only_where_the_paper_makes_them() -> None:
    found = [
        result_of("rfe", 0, 50.0, stream="split-cifar10"),
        result_of("er", 0, 46.0, stream="split-cifar10", samples=500),
    ]
    (experiment,) = collect(found)
    assert not [claim for claim in claims(experiment) if "rehearsal" in claim.text]


def test_more_exemplars_are_judged_the_other_way_round() -> None:
    found = judged(rfe_p=51.0, rfe_b=49.0)
    assert claim_of(found, "RFE-P").verdict == HOLDS
    assert claim_of(found, "RFE-B").verdict == FAILS


def test_close_means_the_whole_interval_within_two_points() -> None:
    words = "end to end"
    assert claim_of(judged(rfe_e2e=49.0), words).verdict == HOLDS
    assert claim_of(judged(rfe_e2e=47.0), words).verdict == FAILS
    assert claim_of(judged(rfe_e2e=48.1), words).verdict == OPEN


def test_forgetting_less_is_the_rival_s_less_ours() -> None:
    many = {"stream.tasks": 10}
    found = [result_of("rfe", seed, 50.0, **many) for seed in range(3)]
    rivals = [result_of("er", seed, 40.0, memory=500, samples=500, **many) for seed in range(3)]
    for seed, rival in enumerate(rivals):
        rival["til"]["forgetting"] = 9.0 + NOISE[seed]
    (experiment,) = collect([*found, *rivals])
    claim = claim_of({each.text: each for each in claims(experiment)}, "forgets less")
    assert claim.verdict == HOLDS  # ours forgets 4: every task but the last one ends 4 below where it was
    assert claim.found.startswith("ahead: +5.0 ± 0.2 less than er (500)")


def test_the_chain_is_judged_with_and_without_it_and_by_distance() -> None:
    claim = claim_of(judged(), "above without it, α = 1")
    assert claim.verdict == HOLDS
    assert claim.found.startswith("ahead: +2.0 ± 0.2")
    results = [result_of("rfe", 0, 50.0, chain=30.0, drift=True, alpha=0.0)]
    results[0]["drift"]["rectified"] = [[0.2 if j < i else None for j in range(5)] for i in range(5)]
    (experiment,) = collect(results)
    nearer = claim_of({each.text: each for each in claims(experiment)}, "RMSE")
    assert (nearer.verdict, nearer.found) == (HOLDS, "10 of 10 pairs of tasks, mean 0.50 → 0.20 (1 seed)")
    results[0]["drift"]["rectified"][4][0] = 0.7
    (experiment,) = collect(results)
    nearer = claim_of({each.text: each for each in claims(experiment)}, "RMSE")
    assert (nearer.verdict, nearer.found) == (OPEN, "9 of 10 pairs of tasks, mean 0.50 → 0.25 (1 seed)")
