"""One run under torchrun: written once, resumed to the same bits, its errors printed once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file


def command(out: Path, *words: str, method: str = "er", size: int = 2) -> list[str]:
    launch = (
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)] if size > 1 else [sys.executable]
    )
    words = ("--tasks", "2", "--train-per-class", "60", "--threads", "1", "--out", str(out), *words)
    return [*launch, "-m", "recollect", "run", "--stream", "split-digits", "--method", method, *words]


def call(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command(*words, **options), capture_output=True, text=True, env=environment)


def events(out: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def test_a_run_is_written_once_and_as_accurate_as_with_one_process(tmp_path: Path) -> None:
    settings = ("--set", "epochs=15", "memory=40")
    done = call(tmp_path / "two", *settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("task 2 learned") == done.stdout.count("The run is in") == 1
    found = events(tmp_path / "two")
    assert (found.count("started"), found.count("finished"), found.count("task")) == (1, 1, 2)
    assert found.count("epoch") == 30
    two = result(tmp_path / "two")
    assert two["environment"]["processes"] == 2
    assert two["memory"]["samples"] == 40
    assert call(tmp_path / "one", *settings, size=1).returncode == 0
    one = result(tmp_path / "one")
    assert one["environment"]["processes"] == 1
    assert one["til"]["average_accuracy"] > 80
    assert two["til"]["average_accuracy"] == pytest.approx(one["til"]["average_accuracy"], abs=8)
    again = call(tmp_path / "two", *settings)
    assert again.returncode == 0
    assert again.stdout.count("The run is in") == 1
    assert events(tmp_path / "two") == found


def test_a_run_stopped_by_a_signal_resumes_to_the_same_bits(tmp_path: Path) -> None:
    words = ("--checkpoint-every", "0", "--set", "epochs=3", "retrospect_epochs=3", "backbone.width=4")
    begun = subprocess.Popen(
        command(tmp_path / "cut", *words, method="rfe-b"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not any((tmp_path / "cut" / "checkpoint").glob("task-000.phase-1*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    begun.send_signal(signal.SIGINT)
    _, errors = begun.communicate(timeout=60)
    assert begun.returncode != 0
    assert errors.count("Saving… press Ctrl-C again to quit without saving.") == 1
    assert errors.count("recollect: saved; the same command resumes from here") == 1
    assert not (tmp_path / "cut" / "result.json").exists()
    again = call(tmp_path / "cut", *words, method="rfe-b")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("resumes after task 0") == 1
    assert call(tmp_path / "whole", *words, method="rfe-b").returncode == 0
    cut, whole = (
        load_file(tmp_path / name / "checkpoint" / "task-002" / "state.safetensors") for name in ("cut", "whole")
    )
    assert all(torch.equal(cut[key], whole[key]) for key in whole)
    assert result(tmp_path / "cut")["til"] == result(tmp_path / "whole")["til"]


def test_an_error_is_printed_once_and_ends_every_process_with_code_2(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("mine")
    for out, words, message in (
        (tmp_path / "taken", (), "is no run folder"),
        (tmp_path / "new", ("--set", "batch_size=3"), "batch_size=3 cannot be sharded over 2 processes"),
        (tmp_path / "bad", ("--set", "learning_rate=1e30"), "Lower learning_rate"),
    ):
        done = call(out, *words)
        assert done.returncode != 0
        assert done.stderr.count(message) == 1, done.stderr
        codes = re.findall(r"exitcode\s*: (-?\d+)", done.stderr)
        assert "2" in codes
        assert set(codes) <= {"2", "-15"}  # torchrun may end the second before it ends itself
        assert "Traceback" not in done.stderr.split("torch/distributed", 1)[0]
