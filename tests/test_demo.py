"""The claim of the demo: on old tasks RFE clearly beats fine-tuning, seed by seed."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from rich.console import Console

from recollect.cli.demo import show_demo


def old_tasks(result: dict) -> float:
    return fmean(result["til"]["matrix"][-1][:-1])


def test_rfe_clearly_beats_fine_tuning_on_old_tasks(tmp_path: Path) -> None:
    console = Console(record=True, width=120, quiet=False)
    results = show_demo(console, 3, tmp_path, 0)
    differences = [old_tasks(r) - old_tasks(f) for r, f in zip(results["rfe"], results["finetune"], strict=True)]
    assert min(differences) > 5
    assert fmean(differences) > 15
    assert all(r["memory"]["samples"] == 0 for r in results["rfe"])
    assert fmean(r["til"]["average_accuracy"] for r in results["joint"]) > 95
    text = console.export_text()
    for word in (
        "finetune",
        "er",
        "rfe",
        "joint",
        "TIL accuracy",
        "CIL forgetting",
        "accuracy-matrices.png",
        "15 epochs",
    ):
        assert word in text
    picture = (tmp_path / "accuracy-matrices.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert (tmp_path / "rfe-2" / "result.json").exists()
