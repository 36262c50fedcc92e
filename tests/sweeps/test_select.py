"""What is chosen of a grid: any setting that varies, among runs that validate on the same images and classes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from recollect.cli.rendering.sweep import print_best
from recollect.runs import resolve
from recollect.storage import write_json
from recollect.sweeps import best_settings
from tests.report.results import result_of as whole_result_of


def result_of(
    method: str, seed: int, validation: float, test: float = 10.0, data: str | None = "d", **settings: Any
) -> dict[str, Any]:
    config = resolve("split-digits", method, seed, settings, precision="fp32")
    measured = {"validation": {"til": validation}, "til": {"average_accuracy": test}}
    return {"config": config.to_json(), "seed": seed, "data": data, **measured}


def test_a_grid_is_decided_by_validation_accuracy_never_by_test() -> None:
    results = [
        result_of("derpp", 0, 60.0, 99.0, distill=0.2),
        result_of("derpp", 1, 62.0, 99.0, distill=0.2),
        result_of("derpp", 0, 70.0, 10.0, distill=0.5),
        result_of("derpp", 1, 71.0, 10.0, distill=0.5),
        result_of("derpp", 0, 50.0, 10.0, distill=0.5, memory=9),
    ]
    results.append(result_of("derpp", 2, 99.0, 10.0, distill=0.2))  # a seed that only one setting has
    choices = {
        (choice.settings["memory"], choice.num_tried): choice for choice in best_settings([*results, results[0]])
    }
    assert choices[9, 1].validation == 50.0
    assert (choices[50, 2].settings, choices[50, 2].validation) == ({"memory": 50, "distill": 0.5}, 70.5)
    assert all(choice.conditions == {} for choice in choices.values())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("training.learning_rate", [0.1, 0.01]),
        ("training.epochs", [2, 3]),
        ("backbone.width", [4, 8]),
        ("stream.crop_padding", [0, 1]),
        ("distill", [0.1, 0.2]),
    ],
)
def test_any_setting_may_be_chosen_and_is_named_with_its_section(name: str, values: list[Any]) -> None:
    (choice,) = best_settings([result_of("derpp", 0, 50.0 + value, **{name: value}) for value in values])
    assert choice.settings == {"memory": 50, name: max(values)}
    assert (choice.conditions, choice.num_tried) == ({}, 2)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("stream.tasks", [2, 5]),
        ("stream.class_order", ["label", "seeded"]),
        ("stream.train_per_class", [10, 20]),
        ("stream.validation", [0.1, 0.2]),
        ("backbone", ["convnet", "resnet18"]),
    ],
)
def test_settings_that_change_the_task_or_backbone_are_compared_separately(name: str, values: list[Any]) -> None:
    settings = [{name: value} for value in values]
    choices = best_settings([result_of("er", 0, 50.0, **options) for options in settings])
    assert [choice.conditions for choice in choices] == settings
    assert [choice.num_tried for choice in choices] == [1, 1]


def test_other_data_precision_and_heads_are_compared_separately() -> None:
    one = result_of("er", 0, 50.0)
    for key in ("precision", "fixed_heads"):
        other = one | {"config": one["config"] | {key: "other"}}
        choices = best_settings([one, other])
        assert {choice.conditions[key] for choice in choices} == {one["config"][key], "other"}
    choices = best_settings([one, result_of("er", 0, 50.0, data="e")])
    assert [choice.conditions for choice in choices] == [{"data": "d"}, {"data": "e"}]
    choices = best_settings([one, result_of("er", 0, 50.0, data="e", **{"stream.crop_padding": 3})])
    assert choices[1].conditions == {"data": "e", "stream.crop_padding": 3}


def test_without_a_digest_options_of_the_stream_are_compared_separately() -> None:
    choices = best_settings([result_of("er", 0, 50.0, data=None, **{"stream.crop_padding": n}) for n in (0, 1)])
    assert [choice.conditions for choice in choices] == [{"stream.crop_padding": n} for n in (0, 1)]


def test_settings_without_a_common_seed_are_reported() -> None:
    with pytest.warns(UserWarning, match="split-digits, er: no seed was run with all 2 settings, so none is chosen"):
        assert best_settings([result_of("er", seed, 50.0, epochs=2 + seed) for seed in (0, 1)]) == []


def test_the_table_names_what_was_chosen_and_no_two_rows_look_alike(tmp_path: Path) -> None:
    for number, (rate, tasks) in enumerate([(0.1, 5), (0.01, 5), (0.1, 2), (0.01, 2)]):
        settings = {"training.learning_rate": rate, "stream.tasks": tasks}
        result = whole_result_of("rfe", 0, 50.0 + number, stream="split-digits", **settings)
        write_json(tmp_path / f"{number}.json", result | {"data": "d"})
    console = Console(width=200, record=True, file=io.StringIO())
    print_best(console, [tmp_path])
    rows = [line.split() for line in console.export_text().splitlines() if line.strip().startswith("split-digits")]
    assert rows == [
        ["split-digits", "rfe", "stream.tasks=2", "memory=50", "training.learning_rate=0.01", "53.00", "2"],
        ["split-digits", "rfe", "stream.tasks=5", "memory=50", "training.learning_rate=0.01", "51.00", "2"],
    ]


def test_accuracies_of_different_scenarios_are_not_compared() -> None:
    choices = best_settings([
        result_of("er", 0, accuracy, **{"stream.shift": shift, "epochs": epochs})
        for epochs, (shift, accuracy) in enumerate((("rotated", 50.0), ("permuted", 90.0)), 1)
    ])  # fmt: skip
    assert sorted(choice.num_tried for choice in choices) == [1, 1]


def test_settings_are_chosen_by_the_accuracy_that_is_asked_for() -> None:
    results = [result_of("derpp", 0, til, distill=distill) for distill, til in ((0.2, 60.0), (0.5, 70.0))]
    for result, cil in zip(results, (40.0, 30.0), strict=True):
        result["validation"]["cil"] = cil
    choices = [best_settings(results)[0], best_settings(results, by="cil")[0]]
    assert [(c.by, c.settings["distill"], c.validation) for c in choices] == [("til", 0.5, 70.0), ("cil", 0.2, 40.0)]
