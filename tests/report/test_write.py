"""A report is complete, whatever its results are called, and its tables are right in every format."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import UserError
from recollect.methods import methods
from recollect.report.layout import Cell, Sheet
from recollect.report.style import COLOURS, EARLIER_STYLES, MARKERS, order_of, style_of
from recollect.report.write import write_report
from tests.report.results import result_of, some_results


def test_a_table_is_written_in_every_format() -> None:
    rows = [["a_b | c", Cell("1.0 ± 0.1", "best")], ["<x> & y", Cell("0.5", "second")]]
    sheet = Sheet("name", "50 % of_it", ["method", "α"], rows, ["a note"])
    assert r"| a_b \| c | **1.0 ± 0.1** |" in sheet.markdown()
    assert "| &lt;x> & y | <u>0.5</u> |" in sheet.markdown()
    assert r"a\_b | c & \textbf{1.0 $\pm$ 0.1} \\" in sheet.latex()
    assert r"<x> \& y & \underline{0.5} \\" in sheet.latex()
    assert r"\caption{50 \% of\_it. a note}" in sheet.latex()
    assert list(csv.reader(io.StringIO(sheet.csv()))) == [["method", "α"], ["a_b | c", "1.0 ± 0.1"], ["<x> & y", "0.5"]]
    assert '<th scope="row">&lt;x&gt; &amp; y</th><td><u>0.5</u></td>' in sheet.html()
    sentences = Sheet("name", "title", ["method", "command"], [["a", "recollect run " * 5]], (), [("<a>", "b")])
    assert '<tr data-variants="[&quot;&lt;a&gt;&quot;, &quot;b&quot;]"><th scope="row">a</th>' in sentences.html()
    assert '<td class="text">recollect run' in sentences.html()


def test_a_report_has_a_page_tables_and_pictures(tmp_path: Path) -> None:
    paths = write_report(some_results(), tmp_path / "out", "My report")
    assert all(path.exists() for path in paths)
    assert {path.suffix for path in paths} == {".html", ".md", ".tex", ".csv", ".png"}
    kinds = {path.stem.rsplit("-", 1)[1] for path in paths if path.suffix == ".png"}
    assert kinds == {"matrices", "curves", "tradeoff", "rmse", "pca"}
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# My report")
    assert "| rfe | 0 | 2.00 / 1.50 | 51.0 ± 1.0 |" in text


def test_a_report_of_joint_training_alone_is_written(tmp_path: Path) -> None:
    assert write_report([result_of("joint", 0, 70.0)], tmp_path / "out")


def test_a_report_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no result to report"):
        write_report([], tmp_path / "none")


def test_results_without_accuracies_or_with_odd_names_are_reported(tmp_path: Path) -> None:
    """A task without test images, two budgets with drift, a name that is no file name, and an option missing."""
    unknown = result_of("rfe", 0, 50.0)
    for evaluation in ("til", "cil"):
        unknown[evaluation] |= {"average_accuracy": None, "incremental_accuracy": None, "forgetting": None}
    odd = result_of("finetune", 0, 30.0, drift=True, chain=20.0)
    odd["config"]["method"]["name"] = "a/b $\\foo$ " + "x" * 300
    budgets = [result_of("rfe-b", 0, 40.0, memory=m, samples=m, drift=True, chain=30.0) for m in (200, 500)]
    older = result_of("rfe", 1, 50.0)
    del older["config"]["method"]["stride"]
    paths = write_report([unknown, odd, *budgets, older], tmp_path / "out")
    assert len(set(paths)) == len(paths)
    assert all(path.is_file() and path.is_relative_to(tmp_path / "out") for path in paths)


def test_a_method_without_a_colour_gets_one_that_follows_from_its_name() -> None:
    names = [f"method-{i}" for i in range(50)]
    results = [named(name, display) for name in names for display in (None, {"colour": "", "order": 5})]
    styles = [style_of(result) for result in results]
    assert styles[::2] == styles[1::2]
    assert len(set(styles)) > 20


def test_what_is_no_colour_or_marker_is_not_drawn() -> None:
    odd = style_of(named("third-party", {"colour": "red;x:y", "order": 5, "marker": "$\\foo$"}))
    assert odd == style_of(named("third-party", None))
    assert style_of(named("third-party", {"colour": "tab:olive", "order": 5})).colour == "#bcbd22"


def test_every_method_has_its_own_colour_and_marker_before_and_after_runs_recorded_them() -> None:
    rows = {name: (row.colour, row.marker) for name, row in methods().items()}
    assert rows == EARLIER_STYLES
    assert len(set(rows.values())) == len(rows)
    assert {colour for colour, _ in rows.values()} == set(COLOURS)
    assert {marker for _, marker in rows.values()} == set(MARKERS)
    recorded_before = named("rfe", {"colour": "tab:green", "order": 130})
    assert style_of(recorded_before) == style_of(named("rfe", None)) == rows["rfe"]


def named(method: str, display: dict[str, Any] | None) -> dict[str, Any]:
    return {"config": {"method": {"name": method}}, "display": display}


def test_order_and_colour_are_those_that_the_run_recorded() -> None:
    recorded = named("third-party", {"colour": "#ff00aa", "order": 115, "marker": "v"})
    assert style_of(recorded) == ("#ff00aa", "v")
    results = [named("zeta", None), named("rfe", None), recorded, named("alpha", None), named("er", None)]
    ordered = [result["config"]["method"]["name"] for result in sorted(results, key=order_of)]
    assert ordered == ["er", "third-party", "rfe", "alpha", "zeta"]
