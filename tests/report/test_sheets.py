"""Tables show means, deviations, marks and the paper's figures."""

from __future__ import annotations

import csv
import io

from recollect.report.collect import Experiment, collect
from recollect.report.layout import Cell, Sheet
from recollect.report.paper import accuracy, paper, parameters, rank_correlation
from recollect.report.sheets import sheets
from tests.report.results import result_of, some_results


def cifar() -> Experiment:
    return next(e for e in collect(some_results()) if e.stream == "split-cifar100")


def tiny_imagenet() -> Experiment:
    results = [result_of(m, 0, 40.0, stream="split-tinyimagenet", **{"stream.tasks": 10}) for m in ("er", "rfe")]
    (experiment,) = collect(results)
    return experiment


def sheet_of(experiment: Experiment, ending: str) -> Sheet:
    (sheet,) = [sheet for sheet in sheets(experiment) if sheet.name.endswith(ending)]
    return sheet


def rows_of(sheet: Sheet) -> dict[str, list[str]]:
    _, *rows = csv.reader(io.StringIO(sheet.csv()))
    return {row[0]: row[1:] for row in rows}


def test_accuracy_tables_have_mean_deviation_and_the_paper_s_figure() -> None:
    rows = rows_of(sheet_of(cifar(), "-til"))
    assert rows["rfe"] == ["0", "2.00 / 1.50", "51.0 ± 1.0", "4.0 ± 0.0", "52.7 ± 1.0", "3", "79.54 ± 0.27"]
    assert rows["er"][-1] == "66.88 ± 0.50"
    assert rows_of(sheet_of(cifar(), "-cil"))["rfe"][-1] == "43.63 ± 1.29"
    assert any("smaller than the paper's" in note for note in sheet_of(cifar(), "-til").notes)


def test_the_chain_table_has_accuracy_with_and_without_it_and_the_gain() -> None:
    assert rows_of(sheet_of(cifar(), "-chain")) == {"rfe": ["51.0 ± 1.0", "45.0 ± 0.0", "+6.0 ± 2.5"]}


def test_differences_are_ahead_behind_or_inconclusive() -> None:
    outcomes = {(row[0], row[1]): row[4] for row in sheet_of(cifar(), "-til-differences").rows}
    assert outcomes["rfe", "er (500)"] == "ahead"
    assert outcomes["rfe", "derpp (500)"] == "inconclusive"


def test_the_best_is_marked_among_methods_with_as_many_exemplars() -> None:
    results = [result_of(m, s, level + s) for s in range(3) for m, level in (("rfe", 40.0), ("finetune", 20.0))]
    for seed in range(3):
        results.append(result_of("er", seed, 60.0 + seed, memory=500, samples=500))
        results.append(result_of("derpp", seed, 70.0 + seed, memory=500, samples=500))
    (experiment,) = collect(results)
    cells = {row[0]: row[3] for row in sheet_of(experiment, "-til").rows}
    marks = {name: cell.mark for name, cell in cells.items() if isinstance(cell, Cell)}
    assert marks == {"rfe": "best", "finetune": "", "derpp": "best", "er": ""}


def test_time_is_relative_to_default_er_with_as_many_exemplars() -> None:
    slow = {"seconds": {"fit": 600.0, "evaluate": 30.0}}
    results = [
        result_of("er", 0, 40.0, memory=500, samples=500),
        result_of("er", 0, 40.0, memory=500, samples=500, units="task") | slow,
        result_of("er", 0, 40.0, memory=200, samples=200) | slow,
        result_of("derpp", 0, 40.0, memory=500, samples=500),
    ]
    (experiment,) = collect(results)
    ratios = {row[0]: row[4] for row in sheet_of(experiment, "-time").rows}
    assert ratios == {"er (200)": "1.00", "er (500)": "1.00", "er, units=task (500)": "10.00", "derpp (500)": "1.00"}


def test_tiny_imagenet_shows_the_paper_s_training_hours_and_testing_seconds() -> None:
    times = rows_of(sheet_of(tiny_imagenet(), "-time"))
    assert times["rfe"] == ["1.0", "0.5", "100", "1.00", "1.94", "0.94", "11.54", "1.57"]
    assert times["er"][4:] == ["2.06", "1.00", "7.36", "1.00"]


def test_tiny_imagenet_shows_the_paper_s_parameters_and_space() -> None:
    sheet = sheet_of(tiny_imagenet(), "-space")
    assert rows_of(sheet)["rfe"][:2] == ["2.00 / 1.50", "25.63 / 14.46"]
    _, note = sheet.notes
    for figure in ("12.28", "14.36", "12.49", "3.84"):
        assert figure in note


def test_tiny_imagenet_shows_what_the_paper_cites() -> None:
    cited = sheet_of(tiny_imagenet(), "-cited")
    assert "not run here" in cited.title
    assert rows_of(cited)["sup+csi"] == ["74.1"]


def test_the_paper_s_accuracy_is_shown_only_for_the_same_cell() -> None:
    def published(method: str = "rfe", **settings: object) -> object:
        (experiment,) = collect([result_of(method, 0, 50.0, **settings)])  # type: ignore[arg-type]
        return accuracy(experiment, experiment.variants[0], "til")

    assert published() == (79.54, 0.27)
    assert published(alpha=0.0) is None  # although there is no other variant
    assert published(auxiliary_dim=64, projection_dim=64) == (79.54, 0.27)
    assert published(**{"stream.class_order": "seeded"}) is None
    assert published(backbone="vit-s16", epochs=30) == (95.54, 0.01)
    assert published(backbone="vit-s16", epochs=30, weights="none") is None
    assert published(**{"stream.tasks": 10}) is None
    assert published(stream="split-digits") is None
    assert published("rfe-e2e") == (79.18, 0.44)
    assert published("er", memory=200, samples=200) is None
    assert len(paper()["task_incremental"]) == 21


def test_the_paper_s_parameters_do_not_depend_on_exemplars() -> None:
    def published(method: str, **settings: object) -> object:
        (experiment,) = collect([result_of(method, 0, 50.0, **settings)])  # type: ignore[arg-type]
        return parameters(experiment, experiment.variants[0])

    assert published("rfe") == (23.81, 12.64)
    assert published("er", memory=200, samples=200) == (11.22, 11.22)
    assert published("rfe", backbone="vit-s16") == (45.19, 23.28)
    assert published("lwf") is None
    assert published("rfe", stream="split-digits") is None


def test_rank_correlation_compares_the_order_of_methods_with_the_paper_s() -> None:
    paper_order = {"agem": 1.0, "er": 2.0, "derpp": 3.0}
    for accuracies, correlation in ((paper_order, 1.0), ({"agem": 3.0, "er": 2.0, "derpp": 1.0}, -1.0)):
        results = [result_of(m, 0, value, memory=500, samples=500) for m, value in accuracies.items()]
        (experiment,) = collect(results)
        assert rank_correlation(experiment, experiment.variants, "til") == (correlation, 3)
    assert rank_correlation(experiment, experiment.variants[:2], "til") is None
