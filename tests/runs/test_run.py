"""Runs and their folders: results, refusals, and what a folder records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recollect import load_run
from recollect.engine import checkpoint
from recollect.errors import UserError
from recollect.runs import resolve, run

QUICK = {"train_per_class": 10, "epochs": 1, "backbone.width": 2, "tasks": 2}
QUICK_RFE = QUICK | {"retrospect_epochs": 1, "auxiliary_dim": 4, "projection_dim": 4}
MATRIX_KEYS = [
    "average_accuracy",
    "backward_transfer",
    "forgetting",
    "forward_transfer",
    "incremental_accuracy",
    "matrix",
]


def test_result_json_has_the_documented_contents_and_is_reproducible_to_the_bit(tmp_path: Path) -> None:
    config = resolve("split-digits", "rfe", 0, QUICK_RFE, measure_drift=True)
    result = run(config, tmp_path / "a", device="cpu", command="recollect run …")
    written = json.loads((tmp_path / "a" / "result.json").read_text())
    assert written == json.loads(json.dumps(result))
    assert set(written) >= {
        "til", "cil", "til_without_chain", "validation", "drift", "parameters", "memory", "seconds",
        "images_per_second", "seed", "command", "commit", "environment",
    }  # fmt: skip
    for key in ("til", "cil", "til_without_chain"):
        assert sorted(written[key]) == MATRIX_KEYS
        assert [len(row) for row in written[key]["matrix"]] == [2, 2]
        assert written[key]["matrix"][0][1] is None
        assert written[key]["forward_transfer"] is None
    assert sorted(written["validation"]) == ["cil", "til"]
    assert written["drift"]["drifted"][1][0] > 0
    assert written["memory"] == {"samples": 0, "bytes": 0}
    assert set(written["seconds"]) == {"fit", "retrospect", "statistics", "evaluate"}
    assert written["parameters"]["training"] > written["parameters"]["inference"] > 0
    assert written["commit"]
    again = run(config, tmp_path / "b", device="cpu")
    assert (again["til"], again["cil"], again["drift"]) == (result["til"], result["cil"], result["drift"])
    events = [json.loads(line) for line in (tmp_path / "a" / "events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "started"
    assert events[-1]["event"] == "finished"
    assert sum(e["event"] == "epoch" for e in events) == 2 + 2  # one epoch a phase, two phases a task


def test_bytes_held_count_every_tensor_once_by_what_it_is(tmp_path: Path) -> None:
    settings = QUICK | {"components": 2}
    result = run(resolve("split-digits", "slda", 0, settings), tmp_path / "slda", device="cpu")
    dim, classes = load_run(tmp_path / "slda").learner.network.feature_dim, 10
    statistics = 8 * classes + 4 * (classes * dim + dim * (dim + 1) // 2 + classes * 2 * dim)
    derived = 4 * (classes * dim + classes + dim + classes * 2 * dim + classes * 2)
    losses = 4 * 4 * 10 * 8 + 8  # of each spread, prior and temperature; and a count
    held = result["bytes_held"]
    assert held["class means and covariances"] == statistics + derived + losses
    assert set(held) == {"class means and covariances", "network"}


def test_results_without_a_chain_and_with_a_memory(tmp_path: Path) -> None:
    result = run(resolve("split-digits", "er", 0, QUICK | {"memory": 7}), tmp_path / "er", device="cpu")
    assert result["til_without_chain"] is None
    assert result["drift"] is None
    assert result["memory"] == {"samples": 7, "bytes": 7 * (32 * 32 + 8 + 8)}
    fixed = run(resolve("split-digits", "finetune", 0, QUICK, fixed_heads=True), tmp_path / "fixed", device="cpu")
    assert fixed["til"]["forward_transfer"] is not None
    assert None not in fixed["til"]["matrix"][0]


def test_a_finished_run_is_kept_and_another_configuration_refused(tmp_path: Path) -> None:
    config = resolve("split-digits", "finetune", 0, QUICK)
    first = run(config, tmp_path / "r", device="cpu")
    stamp = (tmp_path / "r" / "result.json").stat().st_mtime_ns
    assert run(config, tmp_path / "r", device="cpu") == first
    other = resolve("split-digits", "finetune", 1, QUICK)
    with pytest.raises(UserError, match="another configuration .seed is 0, not 1.; .*--force"):
        run(other, tmp_path / "r", device="cpu")
    assert (tmp_path / "r" / "result.json").stat().st_mtime_ns == stamp
    forced = run(other, tmp_path / "r", device="cpu", force=True)
    assert forced["seed"] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for force in (False, True):
        with pytest.raises(UserError, match=r"holds 'thesis.txt' and is not a run folder"):
            run(config, tmp_path / "mine", device="cpu", force=force)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def photos(root: Path, shade: int) -> Path:
    from PIL import Image

    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (20, 20), (shade + i, 10, 200 if name == "cat" else 0)).save(root / name / f"{i}.png")
    return root


def test_the_same_command_on_other_data_is_refused(tmp_path: Path) -> None:
    a, b = photos(tmp_path / "a", 10), photos(tmp_path / "b", 90)
    settings = {"image_size": 16, "epochs": 1, "backbone": "convnet", "width": 2}
    config = resolve("images", "finetune", 0, settings)
    with pytest.warns(UserWarning, match="no validation images"):
        first = run(config, tmp_path / "r", data_root=a, device="cpu")
    assert run(config, tmp_path / "r", data_root=a, device="cpu") == first
    with pytest.raises(UserError, match="holds a run on other data .another digest"):
        run(config, tmp_path / "r", data_root=b, device="cpu")
    (tmp_path / "r" / "result.json").unlink()  # neither is an unfinished one gone on with
    with pytest.raises(UserError, match="holds a run on other data"):
        run(config, tmp_path / "r", data_root=b, device="cpu")
    data = json.loads((tmp_path / "r" / "data.json").read_text())
    assert [task["classes"] for task in data["tasks"]] == [["cat"], ["dog"]]
    assert len(data["mean"]) == len(data["std"]) == 3


def test_a_run_on_tensors_with_the_user_s_own_backbone(tmp_path: Path) -> None:
    from torch import nn

    from tests.support import make_stream

    stream = make_stream((2, 2))
    settings = {"backbone": "own", "epochs": 1, "auxiliary_dim": 4, "retrospect_epochs": 1}
    config = resolve("tensors", "rfe", 0, settings)
    own = nn.Sequential(nn.Flatten(), nn.Linear(768, 6))
    result = run(config, tmp_path / "r", device="cpu", stream=stream, backbone=own)
    assert result["config"]["backbone"] == {"name": "own"}
    newest = checkpoint.newest(tmp_path / "r" / "checkpoint")
    assert newest is not None
    assert (6, 768) in {tuple(tensor.shape) for tensor in checkpoint.load_one(newest).tensors.values()}
    with pytest.raises(UserError, match="given in Python|goes with backbone='own'"):
        run(config, tmp_path / "other", device="cpu", stream=stream)
    with pytest.raises(UserError, match="made in Python"):
        run(resolve("tensors", "rfe", 0), tmp_path / "third", device="cpu")


def test_the_recorded_commit_is_marked_if_the_code_was_changed(tmp_path: Path) -> None:
    """In a checkout of its own: clean, then with a method changed, then with a new one."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    def version() -> str:
        code = "from recollect.runs.folder import code_version; print(code_version())"
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        return done.stdout.strip()

    shutil.copytree(root / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    commit = git("rev-parse", "HEAD").strip()
    assert version() == commit
    (tmp_path / "src" / "recollect" / "methods" / "new.py").write_text('"""New."""\n')
    assert version() == f"{commit}+changes"
    (tmp_path / "src" / "recollect" / "methods" / "new.py").unlink()
    assert version() == commit
    with (tmp_path / "src" / "recollect" / "methods" / "er.py").open("a") as file:
        file.write("\n")
    assert version() == f"{commit}+changes"


def test_auto_precision_is_resolved_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the device computes in natively when the run begins; afterwards the folder says."""
    monkeypatch.setattr("recollect.engine.runtime._computes_in_bf16", lambda kind: True)
    config = resolve("split-digits", "finetune", 0, QUICK)
    assert config.precision == "auto"
    begun = run(config, tmp_path / "run")
    assert (
        begun["config"]["precision"]
        == json.loads((tmp_path / "run" / "config.json").read_text())["precision"]
        == "bf16"
    )
    monkeypatch.setattr("recollect.engine.runtime._computes_in_bf16", lambda kind: False)
    assert run(config, tmp_path / "run") == begun
    assert run(config, tmp_path / "other")["config"]["precision"] == "fp32"
    with pytest.raises(UserError, match="precision"):
        run(resolve("split-digits", "finetune", 0, QUICK, precision="fp32"), tmp_path / "run")
    with pytest.raises(UserError, match="precision is 'auto', 'fp32' or 'bf16', got 'fp8'"):
        resolve("split-digits", "finetune", 0, precision="fp8")
