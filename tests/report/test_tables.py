"""Tables say what the results say: means, spreads, intervals, marks, the paper's figures."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import UserError
from recollect.report.collect import Experiment, collect
from recollect.report.figures import _row_mean
from recollect.report.layout import Cell, Sheet
from recollect.report.paper import accuracy, paper
from recollect.report.sheets import sheets
from recollect.report.stats import best_two, difference
from recollect.report.write import write_report
from recollect.runs import find_results
from tests.report.results import result_of, some_results

QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182}  # Student's t at 97.5 % for so many seeds, from a printed table


def cifar() -> Experiment:
    return next(e for e in collect(some_results()) if e.stream == "split-cifar100")


def sheet_of(experiment: Experiment, ending: str) -> Sheet:
    (found,) = [sheet for sheet in sheets(experiment) if sheet.name.endswith(ending)]
    return found


def rows_of(sheet: Sheet) -> dict[str, list[str]]:
    found = list(csv.reader(io.StringIO(sheet.csv())))
    return {row[0]: row[1:] for row in found[1:]}


def test_runs_are_grouped_by_setting_and_seeds_by_method() -> None:
    digits_and_cifar = collect(some_results())
    assert [e.stream for e in digits_and_cifar] == ["split-cifar100", "split-digits"]
    assert [(v.label, v.memory, v.seeds) for v in cifar().variants] == [
        ("joint", 0, (0, 1, 2)), ("rfe", 0, (0, 1, 2)), ("er", 500, (0, 1, 2)), ("derpp", 500, (0, 1, 2)),
    ]  # fmt: skip
    more = [*some_results(), result_of("rfe", 0, 30.0, alpha=0.0), result_of("er", 0, 1.0, memory=200, samples=200)]
    labels = [(v.label, v.memory) for v in collect(more)[0].variants]
    assert ("rfe, alpha=0.0", 0) in labels
    assert ("rfe", 0) in labels
    assert ("er", 200) in labels
    assert len({e.title for e in collect([*more, result_of("rfe", 0, 3.0, batch_size=16)])}) == 3


def test_accuracy_tables_have_mean_and_deviation_and_the_papers_figure() -> None:
    rows = rows_of(sheet_of(cifar(), "-til"))
    assert rows["rfe"] == ["0", "2.00 / 1.50", "51.0 ± 1.0", "4.0 ± 0.0", "52.7 ± 1.0", "3", "79.54 ± 0.27"]
    assert rows["er"][-1] == "66.88 ± 0.50"
    assert rows_of(sheet_of(cifar(), "-cil"))["rfe"][-1] == "43.63 ± 1.29"
    chain = rows_of(sheet_of(cifar(), "-chain"))
    assert chain == {"rfe": ["51.0 ± 1.0", "45.0 ± 0.0", "+6.0 ± 2.5"]}
    assert any("smaller than the paper's" in note for note in sheet_of(cifar(), "-til").notes)


@pytest.mark.parametrize("gaps", [(1.0, 2.0), (1.0, 2.0, 3.0), (0.1, -0.2, 0.4, 5.0)])
def test_paired_differences_have_students_interval(gaps: tuple[float, ...]) -> None:
    results = [result_of("rfe", seed, 40.0 + seed + gap) for seed, gap in enumerate(gaps)]
    results += [result_of("finetune", seed, 40.0 + seed) for seed in range(len(gaps))]
    one, other = (v for v in collect(results)[0].variants[::-1])
    found = difference(one, other, "til")
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1))
    assert found is not None
    assert found.half_width is not None
    assert found.mean == pytest.approx(mean)
    assert found.half_width == pytest.approx(QUANTILES[len(gaps)] * deviation / math.sqrt(len(gaps)), rel=1e-3)
    assert found.is_clear == (mean > found.half_width)


def marked(results: list[dict[str, Any]]) -> tuple[str, str]:
    best, second = best_two(collect(results)[0].variants, "til")
    return (best.method if best else ""), (second.method if second else "")


def test_only_clear_leads_are_marked_and_the_upper_bound_is_not_ranked() -> None:
    assert best_two(cifar().variants, "til") == (None, None)  # rfe's lead over derpp is not clear
    levels = (("rfe", 50.0), ("lwf", 40.0), ("finetune", 20.0), ("joint", 90.0))
    results = [result_of(method, seed, level + seed) for seed in (0, 1, 2) for method, level in levels]
    assert marked(results) == ("rfe", "lwf")
    assert marked(results[:4]) == ("", "")  # one seed tells nothing
    noisy = [result_of("si", seed, 45.0 + 60 * (seed - 1)) for seed in (0, 1, 2)]
    assert marked(results + noisy) == ("", "")  # ahead of the next but not clearly of all
    told = {(row[0], row[1]): row[4] for row in sheet_of(cifar(), "-til-differences").rows}
    assert told["rfe", "er (500)"] == "ahead"
    assert told["rfe", "derpp (500)"] == "cannot be told"


def test_methods_are_ranked_on_the_seeds_that_all_have() -> None:
    """rfe's further seeds are lucky; on the common ones it is clearly behind."""
    results = [result_of("rfe", seed, value) for seed, value in enumerate([40.0, 41.0, 90.0, 90.0, 90.0])]
    results += [result_of("finetune", seed, value) for seed, value in enumerate([50.0, 51.0])]
    assert marked(results) == ("finetune", "")


def test_marks_are_given_among_as_many_exemplars() -> None:
    results = [result_of(m, s, level + s) for s in (0, 1, 2) for m, level in (("rfe", 40.0), ("finetune", 20.0))]
    results += [result_of(m, s, level + s, memory=500, samples=500)
                for s in (0, 1, 2) for m, level in (("er", 60.0), ("derpp", 70.0))]  # fmt: skip
    (experiment,) = collect(results)
    cells = {row[0]: row[3] for row in sheet_of(experiment, "-til").rows}
    assert {name: cell.mark for name, cell in cells.items() if isinstance(cell, Cell)} == {
        "rfe": "best", "finetune": "", "derpp": "best", "er": "",
    }  # fmt: skip


def test_time_is_over_plain_er_of_as_many_exemplars() -> None:
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


def test_the_paper_stands_only_beside_the_same_cell() -> None:
    def published(**settings: object) -> list[object]:
        (experiment,) = collect([result_of("rfe", 0, 50.0, **settings)])  # type: ignore[arg-type]
        return [accuracy(experiment, variant, "til") for variant in experiment.variants]

    assert published() == [(79.54, 0.27)]
    assert published(alpha=0.0) == [None]  # although no other run stands beside it to tell it from
    assert published(auxiliary_dim=64, projection_dim=64) == [(79.54, 0.27)]
    assert published(**{"stream.class_order": "seeded"}) == [None]
    assert published(backbone="vit-s16", epochs=30) == [(95.54, 0.01)]
    assert published(backbone="vit-s16", epochs=30, weights="none") == [None]
    assert published(**{"stream.tasks": 10}) == [None]
    assert published(stream="split-digits") == [None]
    (experiment,) = collect([result_of("rfe-e2e", 0, 50.0)])
    assert accuracy(experiment, experiment.variants[0], "til") == (79.18, 0.44)
    (experiment,) = collect([result_of("er", 0, 50.0, memory=200, samples=200)])
    assert accuracy(experiment, experiment.variants[0], "til") is None
    assert len(paper()["task_incremental"]) == 21


def test_a_table_in_every_format() -> None:
    rows = [["a_b | c", Cell("1.0 ± 0.1", "best")], ["<x> & y", Cell("0.5", "second")]]
    sheet = Sheet("name", "50 % of_it", ["method", "α"], rows, ["a note"])
    assert r"| a_b \| c | **1.0 ± 0.1** |" in sheet.markdown()
    assert "| &lt;x> & y | <u>0.5</u> |" in sheet.markdown()
    assert r"a\_b | c & \textbf{1.0 $\pm$ 0.1} \\" in sheet.latex()
    assert r"<x> \& y & \underline{0.5} \\" in sheet.latex()
    assert r"\caption{50 \% of\_it. a note}" in sheet.latex()
    assert list(csv.reader(io.StringIO(sheet.csv()))) == [["method", "α"], ["a_b | c", "1.0 ± 0.1"], ["<x> & y", "0.5"]]
    assert '<th scope="row">&lt;x&gt; &amp; y</th><td><u>0.5</u></td>' in sheet.html()


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    paths = write_report(some_results(), tmp_path / "out", "My report")
    assert all(path.exists() for path in paths)
    names = {path.suffix for path in paths}
    assert names == {".html", ".md", ".tex", ".csv", ".png"}
    kinds = {path.stem.rsplit("-", 1)[1] for path in paths if path.suffix == ".png"}
    assert kinds == {"matrices", "curves", "tradeoff", "rmse", "pca"}
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# My report")
    assert "| rfe | 0 | 2.00 / 1.50 | 51.0 ± 1.0 |" in text
    with pytest.raises(UserError, match="no result to report"):
        write_report([], tmp_path / "none")


def test_runs_without_figures_or_with_odd_names_are_reported_too(tmp_path: Path) -> None:
    """A task without test images, two budgets with drift, names that are no file names: every picture is there."""
    unknown = result_of("rfe", 0, 50.0)
    for evaluation in ("til", "cil"):
        unknown[evaluation] |= {"average_accuracy": None, "incremental_accuracy": None, "forgetting": None}
    odd = result_of("finetune", 0, 30.0, drift=True, chain=20.0)
    odd["config"]["method"]["name"] = "a/b $\\foo$ " + "x" * 300
    two = [result_of("rfe-b", 0, 40.0, memory=m, samples=m, drift=True, chain=30.0) for m in (200, 500)]
    older = result_of("rfe", 1, 50.0)
    del older["config"]["method"]["stride"]
    paths = write_report([unknown, odd, *two, older], tmp_path / "out")
    assert len(set(paths)) == len(paths)
    assert all(path.is_file() and path.is_relative_to(tmp_path / "out") for path in paths)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"til": None}, r"Expected `object`, got `null` - at `\$.til`"),
        ({"config": {"hash": "x"}}, "Object missing required field `stream`"),
        ({"seed": '"><img src=x onerror=alert(1)>'}, r"Expected `int`, got `str` - at `\$.seed`"),
        ({"seconds": {"fit": "long"}}, "Expected `float`, got `str`"),
        ({"drift": {"drifted": 1}}, r"Expected `array`, got `int` - at `\$.drift.drifted`"),
        ({"memory": {}}, "Object missing required field `samples`"),
    ],
)
def test_what_is_no_result_is_said_and_left_out(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "result.json").write_text(json.dumps(result_of("rfe", 0, 50.0)))
    (tmp_path / "result.json").write_text(json.dumps(result_of("rfe", 1, 50.0) | change))
    with pytest.warns(UserWarning, match=f"result.json is no result .{says}"):
        found = find_results([tmp_path])
    assert list(found) == [tmp_path / "good" / "result.json"]


def test_tiny_imagenet_shows_time_beside_the_papers_and_what_is_cited() -> None:
    results = [result_of(m, 0, 40.0, stream="split-tinyimagenet", **{"stream.tasks": 10}) for m in ("er", "rfe")]
    (experiment,) = collect(results)
    time = rows_of(sheet_of(experiment, "-time"))
    assert time["rfe"] == ["1.0", "0.5", "100", "1.00", "0.94"]
    cited = sheet_of(experiment, "-cited")
    assert "not run here" in cited.title
    assert rows_of(cited)["sup+csi"] == ["74.1"]


def test_results_on_other_data_are_another_experiment() -> None:
    a, b, old = (result_of("rfe", 0, accuracy) for accuracy in (50.0, 30.0, 40.0))
    found = collect([a | {"data": "aaaa"}, b | {"data": "bbbb"}])
    assert [e.variants[0].figures("til", "average_accuracy") for e in found] == [[50.0], [30.0]]
    assert [e.title.endswith(f"; stream.data={data}") for e, data in zip(found, ("aaaa", "bbbb"), strict=True)] == [
        True
    ] * 2
    assert len(collect([a | {"data": "aaaa"}, old])) == 1  # of before data was recorded


def test_means_over_time_leave_out_tasks_to_come() -> None:
    result = result_of("rfe", 0, 50.0)
    result["til"]["matrix"] = [[80.0, 10.0, 10.0], [60.0, 40.0, 10.0], [50.0, 40.0, 30.0]]  # as with fixed heads
    (variant,) = collect([result])[0].variants
    assert [_row_mean(variant, "til", row) for row in range(3)] == [80.0, 50.0, 40.0]
