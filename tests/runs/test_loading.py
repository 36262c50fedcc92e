"""A run that is loaded from its folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import recollect
from recollect.engine import Runtime, checkpoint
from recollect.engine.evaluation import evaluate
from recollect.errors import UserError

ROOT = Path(__file__).parents[2]


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


def test_a_stream_and_a_backbone_of_ones_own_are_given_again(tmp_path: Path) -> None:
    images, labels = torch.randint(0, 256, (24, 3, 8, 8), dtype=torch.uint8), torch.arange(24) % 4
    stream = recollect.stream_from_tensors(images, labels, images, labels, tasks=2)
    trained, fresh = (nn.Sequential(nn.Flatten(), nn.Linear(192, 5)) for _ in range(2))
    config = recollect.resolve("tensors", "finetune", 0, settings={"backbone": "own", "epochs": 1})
    recollect.run(config, tmp_path, stream=stream, backbone=trained, device="cpu")

    loaded = recollect.load_run(tmp_path, stream=stream, backbone=fresh)

    with torch.no_grad():
        x = loaded.stream.pixels.normalise(images)
        assert torch.equal(loaded.learner.features(x)[0], trained(x))
    assert torch.equal(fresh[1].weight, trained[1].weight)
    other = recollect.stream_from_tensors(255 - images, labels, images, labels, tasks=2)
    with pytest.raises(UserError, match=r"other data .*; give the data of the run"):
        recollect.load_run(tmp_path, stream=other, backbone=fresh)
    with pytest.raises(UserError, match="the stream 'tensors' is made in Python"):
        recollect.load_run(tmp_path, backbone=fresh)


def test_another_backbone_than_the_run_had_is_refused(tmp_path: Path) -> None:
    images, labels = torch.randint(0, 256, (24, 3, 8, 8), dtype=torch.uint8), torch.arange(24) % 4
    stream = recollect.stream_from_tensors(images, labels, images, labels, tasks=2)
    config = recollect.resolve("tensors", "finetune", 0, settings={"backbone": "own", "epochs": 1})
    recollect.run(
        config, tmp_path, stream=stream, backbone=nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), device="cpu"
    )

    with pytest.raises(UserError, match=r"the backbone given does not fit the weights of .*: \S+ differs"):
        recollect.load_run(tmp_path, stream=stream, backbone=nn.Sequential(nn.Flatten(), nn.Linear(192, 6)))


def test_a_chain_of_a_run_is_compacted_as_the_page_shows(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "long-chains.md").read_text(encoding="utf-8"), re.S)
    settings = {"epochs": 1, "retrospect_epochs": 1, "stream.tasks": 3, "stream.train_per_class": 20}
    recollect.run(recollect.resolve("split-digits", "rfe", 0, settings), tmp_path / "rfe", device="cpu")
    scope: dict[str, Any] = {"recollect": recollect, "torch": torch}
    exec(code.replace("runs/long-chain/rfe", (tmp_path / "rfe").as_posix()), scope)
    assert scope["scores"].cil.shape[1] == 10
    assert not list(scope["learner"].rfe.chain.parameters())
