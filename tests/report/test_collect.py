"""Results are grouped into experiments and variants, and labelled by what differs from the defaults."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.report.collect import collect
from recollect.report.defaults import earlier_defaults
from recollect.report.query import accuracy_over_time, find_variant, get_variant, select
from recollect.runs import resolve
from tests.report.results import result_of, some_results


def labels(results: list[dict[str, Any]]) -> list[str]:
    (experiment,) = collect(results)
    return [v.full_label for v in experiment.variants]


def earlier(result: dict[str, Any]) -> dict[str, Any]:
    """As written before runs recorded which of their options differ from the defaults, with the options of then."""
    config = dict(result["config"])
    for section, options in (earlier_defaults(config) or {}).items():
        config[section] = {name: config[section][name] for name in ("name", *options) if name in config[section]}
    return {key: value for key, value in result.items() if key != "non_default_options"} | {"config": config}


def test_results_are_grouped_by_settings_and_seeds_by_method() -> None:
    cifar, digits = collect(some_results())
    assert (cifar.stream, digits.stream) == ("split-cifar100", "split-digits")
    assert [(v.label, v.memory, v.seeds) for v in cifar.variants] == [
        ("joint", 0, (0, 1, 2)),
        ("rfe", 0, (0, 1, 2)),
        ("er", 500, (0, 1, 2)),
        ("derpp", 500, (0, 1, 2)),
    ]


def test_options_and_exemplars_make_variants_and_training_makes_experiments() -> None:
    results = [*some_results(), result_of("rfe", 0, 30.0, alpha=0.0), result_of("er", 0, 1.0, memory=200, samples=200)]
    variants = {(v.label, v.memory) for v in collect(results)[0].variants}
    assert variants >= {("rfe", 0), ("rfe, alpha=0.0", 0), ("er", 500), ("er", 200)}
    titles = {experiment.title for experiment in collect([*results, result_of("rfe", 0, 3.0, batch_size=16)])}
    assert len(titles) == 3


@pytest.mark.parametrize("as_written", [dict, earlier], ids=["recorded", "earlier"])
def test_a_variant_is_labelled_by_its_non_default_options(as_written: Any) -> None:
    assert labels([as_written(result_of("rfe", 0, 50.0))]) == ["rfe"]
    assert labels([as_written(result_of("rfe", 0, 50.0, alpha=0.0))]) == ["rfe, alpha=0.0"]
    sizes = {"auxiliary_dim": 64, "projection_dim": 64}
    assert labels([as_written(result_of("rfe", 0, 50.0, **sizes))]) == ["rfe"]
    both = [as_written(result_of("rfe", 0, 50.0)), as_written(result_of("rfe", 0, 50.0, auxiliary_dim=64))]
    assert labels(both) == ["rfe", "rfe, auxiliary_dim=64"]
    (experiment,) = collect([as_written(result_of("rfe", 0, 50.0))])
    assert set(experiment.changed) == {"stream.train_per_class", "backbone.width", "training.epochs"}
    (experiment,) = collect([as_written(result_of("rfe", 0, 50.0, stream="split-digits"))])
    assert experiment.changed == ()
    (experiment,) = collect([as_written(result_of("rfe", 0, 50.0, backbone="vit-s16", weights="none"))])
    assert experiment.changed == ("backbone.weights",)


def test_fixed_heads_are_part_of_the_label() -> None:
    result = result_of("finetune", 0, 50.0)
    fixed = result | {"config": result["config"] | {"fixed_heads": True, "hash": "other"}}
    assert labels([result, fixed]) == ["finetune", "finetune, fixed_heads=True"]


def test_labels_follow_what_the_run_recorded_and_not_the_defaults_of_today() -> None:
    """As if the default of alpha had been 3 when the run was made."""
    result = result_of("rfe", 0, 50.0, alpha=3.0)
    result["non_default_options"]["method"] = {}
    assert labels([result]) == ["rfe"]


def test_an_option_that_configs_leave_out_is_part_of_the_label_where_it_is_not_the_default() -> None:
    result = result_of("rfe-plus", 0, 50.0, components=0)
    assert "components" not in result["config"]["method"]
    assert labels([result, result_of("rfe-plus", 0, 51.0)]) == ["rfe-plus", "rfe-plus, components=0"]


def test_a_method_that_is_not_installed_is_labelled_by_what_it_recorded() -> None:
    result = result_of("er", 0, 50.0, units="task")
    result["config"]["method"]["name"] = "not-installed"
    assert labels([result]) == ["not-installed, units=task"]


def test_an_earlier_result_of_an_unknown_method_is_labelled_by_what_varies() -> None:
    results = [earlier(result_of("er", 0, 50.0, units=units)) for units in ("seen", "task")]
    for result in results:
        result["config"]["method"]["name"] = "not-installed"
    assert labels(results[:1]) == ["not-installed"]
    assert labels(results) == ["not-installed, units=seen", "not-installed, units=task"]


def test_an_option_that_earlier_results_have_and_no_run_has_any_more_is_ignored() -> None:
    result = earlier(result_of("rfe", 0, 50.0))
    result["config"]["stream"]["removed_option"] = 64
    (experiment,) = collect([result, earlier(result_of("rfe", 1, 50.0))])
    assert experiment.variants[0].seeds == (0, 1)


def test_a_run_records_its_non_default_options_by_section() -> None:
    config = resolve("split-digits", "rfe", 0, {"alpha": 2, "epochs": 3, "stream.tasks": 2, "width": 8})
    assert config.non_default_options() == {
        "stream": {"tasks": 2},
        "method": {"alpha": 2.0},
        "backbone": {"width": 8},
        "training": {"epochs": 3},
    }
    assert not any(resolve("split-digits", "rfe", 0).non_default_options().values())


def test_results_from_different_data_are_different_experiments() -> None:
    a, b, undated = (result_of("rfe", 0, accuracy) for accuracy in (50.0, 30.0, 40.0))
    experiments = collect([a | {"data": "aaaa"}, b | {"data": "bbbb"}])
    assert [e.variants[0].values("til", "average_accuracy") for e in experiments] == [[50.0], [30.0]]
    assert [e.title.rpartition("; ")[2] for e in experiments] == ["stream.data=aaaa", "stream.data=bbbb"]
    assert len(collect([a | {"data": "aaaa"}, undated])) == 1  # from before data was recorded


def test_variants_are_found_by_method_exemplars_and_options() -> None:
    (experiment,) = collect([result_of("rfe", 0, 50.0), result_of("rfe", 0, 30.0, alpha=0.0)])
    free = find_variant(experiment, "rfe", alpha=0.0)
    assert free is not None
    assert free.values("til", "average_accuracy") == [30.0]
    assert find_variant(experiment, "rfe", 500) is None
    assert select(experiment, lambda v: not v.options).variants == (get_variant(experiment, "rfe"),)
    with pytest.raises(LookupError, match="no results of er with 500 exemplars"):
        get_variant(experiment, "er", 500)


def test_accuracy_over_time_leaves_out_tasks_to_come() -> None:
    result = result_of("rfe", 0, 50.0)
    result["til"]["matrix"] = [[80.0, 10.0, 10.0], [60.0, 40.0, 10.0], [50.0, 40.0, 30.0]]  # as with fixed heads
    (variant,) = collect([result])[0].variants
    assert accuracy_over_time(variant, "til") == [80.0, 50.0, 40.0]


def with_precision(result: dict[str, Any], precision: str) -> dict[str, Any]:
    return result | {"config": result["config"] | {"precision": precision, "hash": precision}}


def test_a_precision_that_is_not_the_usual_one_is_part_of_the_label() -> None:
    results = [result_of("rfe", 0, 50.0), with_precision(result_of("rfe", 0, 51.0), "bf16"), result_of("er", 0, 40.0)]
    assert labels(results) == ["er", "rfe", "rfe, bf16"]
    (experiment,) = collect(results)
    assert get_variant(experiment, "rfe").values("til", "average_accuracy") == [50.0]


def test_variants_that_differ_in_defaults_alone_are_labelled_by_them() -> None:
    """As if the default of alpha had changed between two runs, and the stride been added."""
    then, now = result_of("rfe", 0, 50.0, alpha=3.0), result_of("rfe", 0, 51.0)
    then["non_default_options"]["method"] = {}
    del then["config"]["method"]["stride"]
    assert labels([then, now]) == ["rfe, alpha=1.0, stride=1", "rfe, alpha=3.0, no stride"]


def test_results_that_repeat_others_are_listed_with_the_reason() -> None:
    result = result_of("rfe", 0, 50.0)
    again = result | {"environment": {"processes": 2}}
    drifted = result_of("rfe", 0, 50.0, drift=True)
    drifted["config"] |= {"hash": "other", "measure_drift": True}
    (experiment,) = collect([result, again, drifted, result_of("er", 0, 40.0)])
    assert [v.results[0] is drifted for v in experiment.variants] == [False, True]
    assert [(unused.result is again, unused.reason) for unused in experiment.unused] == [
        (False, "repeats seed 0 of rfe; the one that measured drift, or else the last, counts"),
        (True, "repeats seed 0 of rfe; this run used 2 processes, the other 1; "
               "the one that measured drift, or else the last, counts"),
    ]  # fmt: skip


def test_results_of_one_hash_and_different_methods_are_listed_too() -> None:
    one, other = result_of("rfe", 0, 50.0), result_of("er", 0, 50.0)
    other["config"]["hash"] = one["config"]["hash"]
    (experiment,) = collect([one, other])
    assert [unused.reason for unused in experiment.unused] == ["another result has the same configuration hash"]


def test_joint_training_keeps_all_images() -> None:
    cifar = collect(some_results())[0]
    assert [v.images_kept for v in cifar.variants] == ["all", "0", "500", "500"]


def test_a_title_counts_one_epoch_and_one_task_in_the_singular() -> None:
    titles = [
        collect([result_of("er", 0, 50.0, stream="split-digits", epochs=epochs, **{"stream.tasks": tasks})])[0].title
        for epochs, tasks in ((1, 5), (2, 1))
    ]
    assert titles[0].startswith("split-digits, 5 tasks;")
    assert titles[0].endswith("; 1 epoch")
    assert titles[1].startswith("split-digits, 1 task;")
    assert titles[1].endswith("; 2 epochs")


def test_results_from_before_an_option_existed_are_seeds_of_the_same_variant() -> None:
    old, new = result_of("rfe", 0, 50.0), result_of("rfe", 1, 52.0)
    for name in ("shrinkage", "head_weight", "gentle"):
        del old["config"]["method"][name]
    (experiment,) = collect([old, new])
    assert [(v.label, v.seeds) for v in experiment.variants] == [("rfe", (0, 1))]
    new["config"]["method"]["gentle"] = "pretrained"  # not what the old one did
    new["non_default_options"]["method"]["gentle"] = "pretrained"
    (experiment,) = collect([old, new])
    assert [v.seeds for v in experiment.variants] == [(0,), (1,)]
