"""A run that is loaded from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recollect
from recollect.engine import Runtime, checkpoint
from recollect.engine.evaluation import evaluate
from recollect.errors import UserError


def test_a_loaded_run_gives_its_own_accuracies_and_old_features(tmp_path: Path) -> None:
    config = recollect.resolve("split-digits", "rfe-plus", 0, settings={"epochs": 2, "retrospect_epochs": 2})
    result = recollect.run(config, tmp_path / "run", device="cpu")
    loaded = recollect.load_run(tmp_path / "run")
    assert loaded.result == result
    assert loaded.config.method == "rfe-plus"
    runtime = Runtime.choose("cpu", config.precision)
    accuracies = evaluate(loaded.learner, loaded.stream.tasks, "test", loaded.stream.pixels, runtime)
    assert accuracies["cil"] == result["cil"]["matrix"][-1]
    x = loaded.stream.pixels.normalise(loaded.stream.tasks[0].test.take(torch.arange(4))[0])
    today, estimates = loaded.learner.features(x)
    assert len(estimates) == 5
    assert torch.equal(estimates[-1], today)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        recollect.load_run(tmp_path)


def test_a_damaged_newest_checkpoint_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    config = recollect.resolve("split-digits", "finetune", 0, settings={"epochs": 1, "stream.train_per_class": 20})
    recollect.run(config, tmp_path, device="cpu")
    newest = checkpoint.newest(tmp_path / "checkpoint")
    assert newest is not None
    (newest / "state.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=f"{newest.name} is damaged .*; restore it from a copy"):
        recollect.load_run(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
