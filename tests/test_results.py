"""The committed results page is what the committed raw results give."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_results_page_equals_what_the_raw_files_give() -> None:
    spec = importlib.util.spec_from_file_location("real_data_check", ROOT / "benchmarks" / "real_data_check.py")
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    results = check.load()
    assert check.runs().keys() <= results.keys() <= (check.runs() | check.method_runs()).keys()
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == check.page(results)
    assert not [name for name, result in results.items() if "+changes" in result["commit"]]
