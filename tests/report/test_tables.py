"""Tables say what the results say: means, spreads, intervals, marks, the paper's figures."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from recollect.errors import UserError
from recollect.report.collect import Experiment, collect
from recollect.report.layout import Cell, Sheet
from recollect.report.paper import accuracy, paper
from recollect.report.sheets import sheets
from recollect.report.stats import best_two, difference
from recollect.report.write import write_report
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
    assert chain == {"rfe": ["51.0 ± 1.0", "45.0 ± 0.0", "+6.0"]}


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


def test_only_clear_leads_are_marked_and_the_upper_bound_is_not_ranked() -> None:
    """rfe leads derpp by 0.5 + 2·seed less its fall: not clear; derpp leads er by more than its interval: clear."""
    best, second = best_two(cifar().variants, "til")
    assert best is None
    assert second is not None
    assert second.method == "derpp"
    results = [result_of(m, s, a + s) for s in (0, 1, 2) for m, a in (("rfe", 50.0), ("lwf", 40.0), ("finetune", 20.0))]
    best, second = best_two(collect(results)[0].variants, "til")
    assert (best.method if best else "", second.method if second else "") == ("rfe", "lwf")
    assert best_two(collect(results[:3])[0].variants, "til") == (None, None)  # one seed tells nothing
    told = {(row[0], row[1]): row[4] for row in sheet_of(cifar(), "-til-differences").rows}
    assert told["rfe", "er (500)"] == "ahead"
    assert told["rfe", "derpp (500)"] == "cannot be told"


def test_the_paper_stands_only_beside_the_same_cell() -> None:
    def published(**settings: object) -> list[object]:
        (experiment,) = collect([result_of("rfe", 0, 50.0, **settings)])  # type: ignore[arg-type]
        return [accuracy(experiment, variant, "til") for variant in experiment.variants]

    assert published() == [(79.54, 0.27)]
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
    assert "| <x> & y | <u>0.5</u> |" in sheet.markdown()
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


def test_tiny_imagenet_shows_time_beside_the_papers_and_what_is_cited() -> None:
    results = [result_of(m, 0, 40.0, stream="split-tinyimagenet", **{"stream.tasks": 10}) for m in ("er", "rfe")]
    (experiment,) = collect(results)
    time = rows_of(sheet_of(experiment, "-time"))
    assert time["rfe"] == ["1.0", "0.5", "100", "1.00", "0.94"]
    cited = sheet_of(experiment, "-cited")
    assert "not run here" in cited.title
    assert rows_of(cited)["sup+csi"] == ["74.1"]
