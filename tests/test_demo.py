"""The demo shows its claim: on old tasks RFE is far more accurate than fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from tests.support import recollect

METHODS = ("finetune", "er", "fsa", "rfe-plus", "joint")


def old_tasks(result: dict) -> float:
    return fmean(result["til"]["matrix"][-1][:-1])


def test_the_demo_shows_that_rfe_forgets_less_than_fine_tuning(tmp_path: Path) -> None:
    ended = recollect("demo", "--out", tmp_path)
    assert ended.returncode == 0, ended.stderr
    results = {name: json.loads((tmp_path / f"{name}-0" / "result.json").read_text()) for name in METHODS}
    assert old_tasks(results["rfe-plus"]) - old_tasks(results["finetune"]) > 15
    assert results["rfe-plus"]["memory"]["samples"] == 0
    assert results["rfe-plus"]["cil"]["average_accuracy"] > results["finetune"]["cil"]["average_accuracy"] + 20
    assert results["joint"]["til"]["average_accuracy"] > 95
    for text in (*METHODS, "TIL accuracy", "CIL forgetting", "accuracy-matrices.png", "10 epochs per task"):
        assert text in ended.stdout
    assert (tmp_path / "accuracy-matrices.png").read_bytes().startswith(b"\x89PNG")
