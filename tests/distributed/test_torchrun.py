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
from tests.support import recollect


def arguments(out: Path, *words: str) -> list[str]:
    run = ["run", "--stream", "split-digits", "--method", "rfe-b", "--tasks", "2", "--train-per-class", "60"]
    return [*run, "--threads", "1", "--out", str(out), *words]


def command(out: Path, *words: str) -> list[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return [*launch, "-m", "recollect", *arguments(out, *words)]


def call(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command(out, *words), capture_output=True, text=True, env=environment)


def events(out: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def test_a_run_is_written_once_resumed_to_the_same_bits_and_as_accurate_as_with_one_process(tmp_path: Path) -> None:
    words = ("--set", "epochs=8", "retrospect_epochs=3", "memory=40")
    done = call(tmp_path / "two", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("task 2 learned") == done.stdout.count("The run is in") == 1
    found = events(tmp_path / "two")
    assert (found.count("started"), found.count("finished"), found.count("task")) == (1, 1, 2)
    assert found.count("epoch") == 22
    two = result(tmp_path / "two")
    assert two["environment"]["processes"] == 2
    assert two["memory"]["samples"] == 40
    again = call(tmp_path / "two", *words)
    assert again.returncode == 0
    assert again.stdout.count("The run is in") == 1
    assert events(tmp_path / "two") == found
    assert recollect(*arguments(tmp_path / "one", *words)).returncode == 0
    one = result(tmp_path / "one")
    assert one["environment"]["processes"] == 1
    assert one["til"]["average_accuracy"] > 80
    assert two["til"]["average_accuracy"] == pytest.approx(one["til"]["average_accuracy"], abs=8)
    interrupt(tmp_path / "cut", "--checkpoint-every", "0", *words)  # slow enough to be met in its first task
    resumed = call(tmp_path / "cut", *words)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("resumes after task 0") == 1
    cut, whole = (
        load_file(tmp_path / name / "checkpoint" / "task-002" / "state.safetensors") for name in ("cut", "two")
    )
    assert all(torch.equal(cut[key], whole[key]) for key in whole)
    assert result(tmp_path / "cut")["til"] == two["til"]


def interrupt(out: Path, *words: str) -> None:
    """Ctrl-C in the middle of the first task: one process says so, and all end."""
    begun = subprocess.Popen(command(out, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any((out / "checkpoint").glob("task-000.phase-1*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    begun.send_signal(signal.SIGINT)
    _, errors = begun.communicate(timeout=60)
    assert begun.returncode != 0
    assert errors.count("Saving… press Ctrl-C again to quit without saving.") == 1
    assert errors.count("recollect: saved; the same command resumes from here") == 1
    assert not (out / "result.json").exists()


def test_an_error_is_printed_once_and_ends_every_process_with_code_2(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("mine")
    for out, words, message in (
        (tmp_path / "taken", (), "is not a run folder"),
        (tmp_path / "bad", ("--set", "learning_rate=1e30"), "Lower learning_rate"),
    ):
        done = call(out, *words)
        assert done.returncode != 0
        assert done.stderr.count(message) == 1, done.stderr
        codes = re.findall(r"exitcode\s*: (-?\d+)", done.stderr)
        assert "2" in codes
        assert set(codes) <= {"2", "-15"}  # torchrun may end the second before it ends itself
        assert "Traceback" not in done.stderr.split("torch/distributed", 1)[0]
