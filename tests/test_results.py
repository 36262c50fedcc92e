"""The committed results page is what the committed raw results give."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_results_page_equals_what_the_raw_files_give() -> None:
    check = load("real_data_check")
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == check.page()
    for group, runs in check.GROUPS.items():
        results = check.load(group)
        assert results.keys() <= runs().keys()
        assert not [name for name, result in results.items() if "+changes" in result["commit"]]
        for name, result in results.items():
            words = runs()[name]
            assert result["config"]["method"]["name"] == words[words.index("--method") + 1], name


def test_the_speed_page_equals_what_the_raw_file_gives() -> None:
    speed = load("speed")
    found = json.loads((ROOT / "results" / "bench.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "speed.md").read_text(encoding="utf-8") == speed.page(found)
