"""The committed pages and pictures are what the committed raw results give."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from recollect.runs import RunConfig, find_results
from recollect.sweeps.preset import load_preset

ROOT = Path(__file__).parents[1]
CPU = ROOT / "results" / "cpu"


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def results() -> Any:
    return importlib.import_module("results")


@pytest.fixture
def pictures() -> Any:
    return importlib.import_module("pictures")


def test_the_results_page_equals_what_the_raw_files_give(results: Any) -> None:
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == results.page()


def test_readme_s_table_equals_what_the_raw_files_give(results: Any) -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8") == results.readme()


def test_every_picture_shows_the_raw_figures_and_is_on_a_page(results: Any, pictures: Any) -> None:
    text = results.page() + results.readme()
    names = []
    for name, drawn, _ in results.pictures():
        assert pictures.stamp_of(pictures.PICTURES / name) == pictures.digest(drawn), f"{name}: run `make results`"
        assert f"images/{name}" in text, name
        names.append(name)
    assert "story.png" in names


def test_a_picture_is_drawn_anew_only_where_its_figures_changed(pictures: Any, tmp_path: Path) -> None:
    drawn: list[Path] = []

    def make(path: Path) -> None:
        drawn.append(path)
        pictures.Image.new("RGB", (4, 4)).save(path)

    for figures in ([1.0], [1.0], [2.0]):
        pictures.draw("x.png", figures, make, tmp_path)
        assert pictures.stamp_of(tmp_path / "x.png") == pictures.digest(figures)
    assert len(drawn) == 2


def test_raw_results_are_of_clean_commits_and_lie_where_their_sweep_puts_them() -> None:
    found = find_results([CPU])
    assert found
    jobs: dict[str, dict[str, RunConfig]] = {}
    for path, result in found.items():
        assert "+changes" not in result["commit"], path
        assert result["command"].startswith("recollect run "), path
        preset, stream, label, seed = path.parent.relative_to(CPU).parts
        if preset not in jobs:
            jobs[preset] = {job.name: job.config for job in load_preset(f"cpu/{preset}").jobs()}
        job = jobs[preset][f"{stream}/{label}/{seed}"]
        wanted = job.to_json()
        for section in ("stream", "method", "backbone", "training"):
            given = result["config"][section]
            common = given.keys() & wanted[section].keys()  # options come and go between commits
            assert "name" in common or section == "training", path
            assert {key: given[key] for key in common} == {key: wanted[section][key] for key in common}, path
        assert [result["config"][key] == wanted[key] for key in ("seed", "fixed_heads", "measure_drift")] == [
            True
        ] * 3, path
        assert result["environment"]["threads"] == 1, path


def test_the_speed_page_equals_what_the_raw_file_gives() -> None:
    speed = importlib.import_module("speed")
    found = json.loads((ROOT / "results" / "bench.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "speed.md").read_text(encoding="utf-8") == speed.page(found)
