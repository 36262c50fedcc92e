"""Killed at any moment, a run ends as if it had not been; and the test would notice if anything were left out.

A few kills and methods by default; RECOLLECT_KILLS=20 kills every method that often.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.engine.fit import Fit
from recollect.memory import Memory
from recollect.methods import methods
from tests.support import StopAt, StopError, make_learner, make_stream, recollect, teach

KILLS = int(os.environ.get("RECOLLECT_KILLS", "3"))
NAMES = sorted(methods()) if "RECOLLECT_KILLS" in os.environ else ["rfe-b", "cls-er"]


def arguments(name: str, out: Path) -> list[str]:
    """Three tiny tasks with a checkpoint after every step, so that some kills interrupt the writing of one."""
    words = ["run", "--stream", "split-digits", "--tasks", "3", "--train-per-class", "20", "--threads", "1"]
    settings = ["epochs=3", "backbone.width=4"] + (["retrospect_epochs=3"] if name.startswith("rfe") else [])
    return [*words, "--checkpoint-every", "0", "--method", name, "--out", str(out), "--set", *settings]


def outcome(out: Path) -> tuple[Any, Any, str]:
    """Both evaluations, and the bytes of the model after the last task."""
    result = json.loads((out / "result.json").read_text())
    model = out / "checkpoint" / "task-003" / "state.safetensors"
    return result["til"], result["cil"], hashlib.sha256(model.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    started = time.monotonic()
    assert recollect(*arguments(name, tmp_path / "whole")).returncode == 0
    whole_seconds = time.monotonic() - started
    rng = random.Random(f"{name} {KILLS}")
    landed, attempt, moments = 0, 0, set()
    while landed < KILLS:
        cut = tmp_path / f"cut-{attempt}"
        command = [sys.executable, "-m", "recollect", *arguments(name, cut)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and not any((cut / "checkpoint").glob("task-*")):
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.4) * whole_seconds)
            process.kill()
        if process.returncode == -signal.SIGKILL:
            landed += 1
            moments |= {path.name for path in (cut / "checkpoint").glob("*")}
        if (cut / "result.json").exists():  # it was through: the next kill begins anew
            assert outcome(cut) == outcome(tmp_path / "whole")
            attempt += 1
    done = recollect(*arguments(name, cut))
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stderr
    assert moments
    assert outcome(cut) == outcome(tmp_path / "whole")


def leave_out_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Fit.state

    def state(self: Fit) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors, values = original(self)
        return {key: tensor for key, tensor in tensors.items() if key == "losses"}, values

    monkeypatch.setattr(Fit, "state", state)


def leave_out_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Fit.load

    def load(self: Fit, tensors: Any, values: Any) -> None:
        original(self, tensors, values)
        self.update.step = 0

    monkeypatch.setattr(Fit, "load", load)


def leave_out_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "set_extra_state", lambda self, state: None)


@pytest.mark.parametrize("omit", [leave_out_moments, leave_out_the_step, leave_out_the_memory])
def test_the_comparison_fails_when_something_is_left_out(
    omit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream((2, 2), per_class=16)
    whole = make_learner("er", stream, epochs=2)
    record = teach(whole, stream).record
    for left_out in (False, True):
        folder = tmp_path / str(left_out)
        options = {"checkpoints": folder, "checkpoint_seconds": 0.0}
        with monkeypatch.context() as patched:
            if left_out:
                omit(patched)
            with pytest.raises(StopError):
                teach(
                    make_learner("er", stream, epochs=2),
                    stream,
                    observer=StopAt(int(0.85 * record.num_images)),
                    **options,
                )
            learner = make_learner("er", stream, epochs=2)
            teach(learner, stream, **options)
        mine, theirs = whole.state_dict(), learner.state_dict()
        same = all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert same != left_out
