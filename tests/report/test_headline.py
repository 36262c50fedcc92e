"""The first sentence names the best method that keeps no images, and says where the results do not show it."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.report.collect import Experiment, collect
from recollect.report.headline import CLEAR, candidates, chain_costs, headlines
from recollect.report.summary import MAX_SHOWN, by_seeds, default_variants, summary_sheet
from recollect.report.verdict import INCONCLUSIVE
from tests.report.results import MANY, many_results, result_of, some_results


def experiment_of(results: list[dict[str, Any]]) -> Experiment:
    (experiment,) = collect(results)
    return experiment


def test_a_clear_lead_without_images_is_a_headline() -> None:
    unknown, known = headlines(experiment_of(many_results()))
    assert unknown.verdict == CLEAR
    assert unknown.text == "Without keeping images, `rfe-plus` is best with the task unknown: 34.1 ± 0.2 %."
    assert "Next: `rfe`, 30.1 ± 0.2 %." in unknown.details
    kept = "Of those that keep images, `rfe-b` with 500 is highest: 33.0 ± 0.0 %, 1.1 ± 0.2 points below `rfe-plus`."
    assert kept in unknown.details
    assert "`joint`, trained on all images at once: 40.1 ± 0.2 %." in unknown.details
    assert known.verdict == INCONCLUSIVE  # all are equal


def test_overlapping_intervals_are_inconclusive() -> None:
    results = [result_of("rfe", seed, 50.0, cil) for seed, cil in enumerate((20.0, 24.0, 22.0))]
    results += [result_of("lwf", seed, 50.0, cil) for seed, cil in enumerate((22.0, 20.0, 21.0))]
    unknown, _ = headlines(experiment_of(results))
    assert unknown.verdict == INCONCLUSIVE
    assert unknown.text == (
        "Inconclusive: without keeping images, `rfe` has the highest accuracy with the task unknown: 22.0 ± 5.0 %; its "
        "lead over `lwf` is +1.0 ± 7.5 points (3 seeds)."
    )


def test_one_seed_is_inconclusive_and_those_with_several_are_named() -> None:
    results = [result_of("rfe-plus", 0, 50.0, 30.0)]
    results += [result_of("rfe", seed, 50.0, 20.0 + seed) for seed in (0, 1)]
    results += [result_of("lwf", seed, 50.0, 10.0 + seed) for seed in (0, 1)]
    unknown, _ = headlines(experiment_of(results))
    assert unknown.text.startswith("Inconclusive: without keeping images, `rfe-plus` has the highest accuracy")
    assert unknown.text.endswith("30.0 % (1 seed); one seed says nothing about others.")
    assert unknown.details == [
        "Among those with several seeds, `rfe` is highest: 20.5 (20.0, 21.0) %, ahead of all others."
    ]


def test_a_single_method_is_compared_with_nothing() -> None:
    (unknown, _) = headlines(experiment_of([result_of("rfe", 0, 50.0, 20.0)]))
    assert unknown.verdict == INCONCLUSIVE
    assert "`rfe` is the only method here that keeps no images" in unknown.text
    assert headlines(experiment_of([result_of("er", 0, 50.0, memory=500, samples=500)])) == []


def chosen_labels(results: list[dict[str, Any]], evaluation: str = "til") -> list[str]:
    return [v.label for v in candidates(experiment_of(results), evaluation)]


def test_ablations_are_left_out_beside_rfe() -> None:
    results = [result_of("rfe", 0, 50.0), result_of("rfe", 0, 40.0, 60.0, alpha=0.0), result_of("rfe-no-aux", 0, 70.0)]
    assert chosen_labels(results) == ["rfe"]
    assert chosen_labels(results[1:]) == ["rfe, alpha=0.0"]
    assert chosen_labels(results[2:]) == ["rfe-no-aux"]


def test_methods_are_compared_by_the_variant_that_is_best_on_validation_images() -> None:
    results = [result_of("fsa", seed, 50.0) for seed in (0, 1)]
    results += [result_of("fsa", seed, 40.0, components=8) for seed in (0, 1)]  # lower on test images
    for result in results:
        is_better = result["config"]["method"].get("components") == 8
        result["validation"] = {"til": 70.0 + is_better, "cil": 60.0 - is_better}
    assert chosen_labels(results, "til") == ["fsa, components=8"]
    assert chosen_labels(results, "cil") == ["fsa"]
    one_seed = result_of("fsa", 0, 90.0, components=2)
    one_seed["validation"] = {"til": 99.0, "cil": 99.0}
    assert chosen_labels([*results, one_seed], "til") == ["fsa, components=8"]


def test_a_rival_of_one_seed_that_is_behind_does_not_make_a_lead_inconclusive() -> None:
    results = [result_of("rfe-plus", seed, 50.0, 30.0 + seed) for seed in (0, 1, 2)]
    results += [result_of("rfe", seed, 50.0, 20.0 + seed) for seed in (0, 1, 2)]
    unknown, _ = headlines(experiment_of([*results, result_of("ldc", 0, 50.0, 25.0)]))
    assert unknown.verdict == CLEAR
    assert unknown.details[0] == "Next: `rfe`, 21.0 ± 2.5 %."
    assert unknown.details[1] == "Not compared, for too few seeds in common: `ldc` 25.0 % (1 seed)."


def test_a_rival_of_one_seed_within_the_interval_makes_a_lead_inconclusive() -> None:
    results = [result_of("rfe-plus", seed, 50.0, 30.0 + seed) for seed in (0, 1, 2)]
    results += [result_of("rfe", seed, 50.0, 20.0 + seed) for seed in (0, 1, 2)]
    unknown, _ = headlines(experiment_of([*results, result_of("ldc", 0, 50.0, 28.6)]))
    assert unknown.verdict == INCONCLUSIVE
    assert unknown.text.endswith("31.0 ± 2.5 %; it has too few seeds in common with `ldc`, 28.6 % (1 seed).")
    among = "Among those with several seeds, `rfe-plus` is highest: 31.0 ± 2.5 %, ahead of all others."
    assert unknown.details[0] == among


def test_methods_are_compared_in_the_precision_that_most_runs_have() -> None:
    results = [result_of(method, seed, 50.0) for method in ("rfe", "er") for seed in (0, 1, 2)]
    other = [result_of(method, seed, 60.0) for method in ("rfe", "ldc") for seed in (0, 1, 2)]
    for precision, group in (("bf16", results), ("fp32", other)):
        for result in group:
            result["config"]["precision"] = precision
    labels = chosen_labels([*results, *other])
    assert labels == ["er", "rfe", "ldc, fp32"]


def test_the_first_table_has_at_most_twelve_rows_with_bounds_and_rivals() -> None:
    shown = [v.full_label for v in default_variants(experiment_of(many_results()))]
    assert len(shown) == MAX_SHOWN == 12
    assert shown == ["rfe-plus", "rfe", "fsa", "ldc", "lwf", "finetune", "rfe-b (500)", "rfe-p (500)", "er-ace (500)",
                     "tamil (500)", "derpp (500)", "joint"]  # fmt: skip
    assert len(default_variants(experiment_of([result_of("rfe", 0, 50.0)]))) == 1


def test_the_summary_has_all_variants_those_without_images_first() -> None:
    result = result_of("rfe", 0, 50.0, 20.0)
    result["task_prediction"] = {**result["cil"], "average_accuracy": 44.0}
    sheet = summary_sheet(experiment_of([result, *many_results()[3:]]), "name")
    rows = {str(row[0]): list(row[1:]) for row in sheet.rows}
    assert [row[1] for row in sheet.rows] == ["0"] * 9 + ["200"] * 7 + ["500"] * 7 + ["all"]
    assert rows["rfe"] == ["0", "20.0", "44.0", "50.0", "4.0", "2.00 / 1.50", "1"]
    assert rows["rfe-plus"][1] == "34.1 ± 0.2"
    assert len(sheet.variants) == len(sheet.rows)


def test_the_experiment_with_most_seeds_is_first() -> None:
    few = [result_of(method, 0, 50.0, stream="split-digits") for method in MANY]
    more = [result_of("rfe", seed, 50.0) for seed in (0, 1)]
    assert [e.stream for e in by_seeds(collect([*few, *more]))] == ["split-cifar100", "split-digits"]


@pytest.mark.parametrize(
    ("drop", "reason"), [(0.5, "there was little to correct"), (9.0, "perhaps the errors of the estimates were larger")]
)
def test_what_the_chain_cost_is_explained(drop: float, reason: str) -> None:
    results = [result_of("rfe", seed, 50.0, chain=51.4 + 0.1 * seed) for seed in (0, 1, 2)]
    for result in results:
        result["til_without_chain"]["forgetting"] = drop
    results += [result_of("rfe-plus", seed, 50.0, chain=45.0) for seed in (0, 1)]
    ((variant, text),) = chain_costs(experiment_of(results).variants)
    assert variant.label == "rfe"
    assert text.startswith("The chain cost `rfe` 1.5 ± 0.2 points here, task known. ")
    assert f"Without the chain, forgetting was {drop} points: " in text
    assert reason in text
    assert "Inconclusive" not in text


def test_costs_of_the_chain_with_one_seed_are_inconclusive() -> None:
    ((_, text),) = chain_costs(experiment_of([result_of("rfe", 0, 50.0, chain=51.0)]).variants)
    assert text.startswith("The chain cost `rfe` 1.0 points here, task known. Inconclusive (1 seed).")


def test_no_task_is_predicted_where_a_class_is_in_several() -> None:
    result = result_of("rfe", 0, 50.0, 20.0)
    result["task_prediction"] = {**result["cil"], "average_accuracy": 44.0}
    result["config"]["stream"]["shift"] = "rotated"
    assert summary_sheet(experiment_of([result]), "name").rows[0][3] == "–"


def test_some_results_are_answered() -> None:
    assert [len(headlines(experiment)) for experiment in collect(some_results())] == [2, 2]
