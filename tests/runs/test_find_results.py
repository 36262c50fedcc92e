"""Results are found while runs are working: files that disappear meanwhile and unfinished ones are skipped."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from recollect.results import find_results
from tests.report.results import result_of


def put_result(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    path.write_text(json.dumps(result_of("rfe", seed, 50.0)))
    return path


def test_a_folder_that_disappears_before_it_is_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [put_result(tmp_path / "b"), put_result(tmp_path / "a" / "c")]
    gone, replaced = tmp_path / "a" / "gone", tmp_path / "replaced"
    put_result(gone)
    put_result(replaced)
    listing = os.scandir

    def scandir(path: Any) -> Any:
        if str(path) == str(gone):
            shutil.rmtree(gone)
        if str(path) == str(replaced):
            shutil.rmtree(replaced)
            replaced.write_text("a file now")
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert list(find_results([tmp_path])) == sorted(paths)
    assert not gone.exists()
    assert replaced.is_file()


def test_a_file_that_disappears_before_it_is_read_is_skipped(tmp_path: Path) -> None:
    """Links to nothing, and to something in a file's place, are what such a file looks like."""
    path = put_result(tmp_path / "a")
    for name, target in (("b", tmp_path / "nowhere"), ("c", path / "result.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").symlink_to(target)
    assert list(find_results([tmp_path])) == [path]


def test_checkpoints_unfinished_and_hidden_folders_and_links_are_not_searched(tmp_path: Path) -> None:
    path = put_result(tmp_path / "runs" / "a")
    for name in ("a/checkpoint/task-001", ".hidden", "unfinished", "b.123.unfinished"):
        put_result(tmp_path / "runs" / name)
    put_result(tmp_path / "elsewhere")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    assert list(find_results([tmp_path / "runs"])) == [path]
    (tmp_path / "linked").symlink_to(tmp_path / "runs")
    assert list(find_results([tmp_path / "linked"])) == [tmp_path / "linked" / "a" / "result.json"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    put_result(tmp_path / "a")
    (tmp_path / "a").chmod(0)
    with pytest.warns(UserWarning, match="a cannot be read .*; it is skipped"):
        assert find_results([tmp_path]) == {}
    (tmp_path / "a").chmod(0o700)


def test_results_are_found_while_folders_appear_and_disappear(tmp_path: Path) -> None:
    paths = {put_result(tmp_path / str(seed), seed) for seed in range(3)}
    stop = threading.Event()

    def make_and_remove(number: int) -> None:
        while not stop.is_set():
            for parent in ("checkpoint", "other"):
                aside, final = (tmp_path / "0" / parent / str(number) / name for name in ("aside", "task-001"))
                (aside / "deeper").mkdir(parents=True)
                (aside / "deeper" / "state.json").write_text("{}")
                aside.rename(final)
                shutil.rmtree(tmp_path / "0" / parent / str(number))

    threads = [threading.Thread(target=make_and_remove, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(150):
            assert set(find_results([tmp_path])) == paths
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"til": None}, r"Expected `object`, got `null` - at `\$.til`"),
        ({"config": {"hash": "x"}}, "Object missing required field `stream`"),
        ({"seed": '"><img src=x onerror=alert(1)>'}, r"Expected `int`, got `str` - at `\$.seed`"),
        ({"seconds": {"fit": "long"}}, "Expected `float`, got `str`"),
        ({"drift": {"drifted": 1}}, r"Expected `array`, got `int` - at `\$.drift.drifted`"),
        ({"memory": {}}, "Object missing required field `samples`"),
        ({"non_default_options": {"method": {}}}, "Object missing required field `stream`"),
    ],
)
def test_a_file_that_is_no_result_is_reported_and_skipped(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    good = put_result(tmp_path / "good")
    (tmp_path / "result.json").write_text(json.dumps(result_of("rfe", 1, 50.0) | change))
    with pytest.warns(UserWarning, match=f"result.json is not a result .{message}"):
        assert list(find_results([tmp_path])) == [good]
