"""The committed pages and pictures are what the committed raw results give."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from recollect.results import find_results
from recollect.runs import RunConfig, resolve
from recollect.runs.tuned import tuned
from recollect.sweeps.preset import load_preset

ROOT = Path(__file__).parents[1]
CPU = ROOT / "results" / "cpu"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def pages() -> Any:
    return importlib.import_module("pages.results")


def test_the_results_page_matches_the_raw_results(pages: Any) -> None:
    assert pages.PAGE.read_text(encoding="utf-8") == pages.page(), "run `make results`"


@pytest.mark.parametrize("name", ["unknown", "scenarios", "choosing"])
def test_further_pages_match_the_raw_results(name: str) -> None:
    other = importlib.import_module(f"pages.{name}")
    assert other.PAGE.read_text(encoding="utf-8") == other.page(), "run `make results`"


def test_the_page_on_backbones_matches_the_raw_results() -> None:
    backbones = importlib.import_module("backbones")
    assert backbones.PAGE.read_text(encoding="utf-8") == backbones.page(), "run `python benchmarks/backbones.py page`"


def test_the_readme_table_matches_the_raw_results(pages: Any) -> None:
    assert pages.README.read_text(encoding="utf-8") == pages.readme(), "run `make results`"


def test_every_picture_matches_the_raw_results_and_is_on_a_page(pages: Any) -> None:
    pictures = importlib.import_module("pictures")
    text = pages.PAGE.read_text(encoding="utf-8")
    drawn = list(importlib.import_module("pages.drawing").pictures())
    assert len(drawn) > 3
    for picture in drawn:
        assert pictures.stored_digest(pictures.FOLDER / picture.name) == picture.digest, "run `make results`"
        assert f"images/{picture.name}" in text


def test_tuned_settings_are_those_that_the_raw_results_choose() -> None:
    with pytest.warns(UserWarning, match="no seed was run with all 3 settings"):
        assert importlib.import_module("tuned").rows() == tuned(), "run `python benchmarks/tuned.py`"
    for row in tuned():
        resolve(row["stream"], row["method"], 0, row["settings"])


def test_the_speed_page_matches_the_measurements() -> None:
    speed = importlib.import_module("speed")
    assert speed.PAGE.read_text(encoding="utf-8") == speed.page(speed.read()), "run `benchmarks/speed.py page`"


def test_a_picture_is_redrawn_only_when_its_data_changed(tmp_path: Path) -> None:
    pictures = importlib.import_module("pictures")
    drawn: list[Path] = []

    def draw(path: Path) -> None:
        drawn.append(path)
        pictures.Image.new("RGB", (4, 4)).save(path)

    for data in ([1.0], [1.0], [2.0]):
        picture = pictures.Picture("x.png", data, draw)
        picture.update(tmp_path)
        assert pictures.stored_digest(tmp_path / "x.png") == picture.digest
    assert len(drawn) == 2


def test_a_template_and_its_values_must_have_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    markdown = importlib.import_module("pages.markdown")
    monkeypatch.setattr(markdown, "TEMPLATES", tmp_path)
    (tmp_path / "page.md").write_text("{{a}} and {{b}}\n\n\n\nend\n")
    assert markdown.fill("page.md", {"a": "1", "b": "2"}) == "1 and 2\n\nend\n"
    for values in ({"a": "1"}, {"a": "1", "b": "2", "c": "3"}):
        with pytest.raises(ValueError, match="page.md and its values differ in"):
            markdown.fill("page.md", values)


def test_a_sentence_that_results_no_longer_support_stops_the_page() -> None:
    markdown = importlib.import_module("pages.markdown")
    markdown.require(True, "water is wet")
    with pytest.raises(ValueError, match="water is dry"):
        markdown.require(False, "water is dry")


def test_raw_results_come_from_clean_commits_and_match_their_preset() -> None:
    results = find_results([CPU])
    assert results
    jobs: dict[str, dict[str, RunConfig]] = {}
    for path, result in results.items():
        assert "+changes" not in result["commit"], path
        assert result["command"].startswith("recollect run "), path
        preset, stream, label, seed = path.parent.relative_to(CPU).parts
        if preset not in jobs:
            jobs[preset] = {job.name: job.config for job in load_preset(f"cpu/{preset}").jobs()}
        expected = jobs[preset][f"{stream}/{label}/{seed}"].to_json()
        for section in ("stream", "method", "backbone", "training"):
            options = result["config"][section]
            common = options.keys() & expected[section].keys()  # options are added and removed between versions
            assert "name" in common or section == "training", path
            assert {key: options[key] for key in common} == {key: expected[section][key] for key in common}, path
        for key in ("seed", "fixed_heads", "measure_drift"):
            assert result["config"][key] == expected[key], path
        assert result["environment"]["threads"] == 1, path
