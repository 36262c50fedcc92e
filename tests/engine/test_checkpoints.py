"""Checkpoints survive crashes, damage and full disks, and hold no samples that were dropped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import make_learner, make_stream, teach

from recollect.engine import Observer, checkpoint
from recollect.errors import UserError
from recollect.streams import Stream


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [flip_a_bit, cut_in_half, empty, Path.unlink])
@pytest.mark.parametrize("file", ["state.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(harm: Any, file: str, tmp_path: Path) -> None:
    """Said, and to the same bits; where none is intact the run is refused."""
    stream = make_stream()
    whole = make_learner("finetune", stream)
    record = teach(whole, stream, checkpoints=tmp_path).record
    before, last = sorted(tmp_path.glob("task-*"))
    harm(last / file)
    learner = make_learner("finetune", stream)
    with pytest.warns(UserWarning, match=f"{last.name} is damaged .*; it is removed, resuming from {before.name}"):
        again = teach(learner, stream, checkpoints=tmp_path).record
    assert again.matrices == record.matrices
    assert all(torch.equal(tensor, learner.state_dict()[key]) for key, tensor in whole.state_dict().items())
    for path in tmp_path.glob("task-*"):
        harm(path / file)
    with pytest.raises(UserError, match="is damaged .*, and there is no other; remove .* to start over"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path)


def test_a_checkpoint_of_another_run_or_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream()
    teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, run="mine")
    with pytest.raises(UserError, match=r"task-002 is of another run \(mine\); move it away to start over"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, run="yours")
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(UserError, match="task-002 is of format 1; move it away"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, run="mine")


@pytest.mark.parametrize("name", ["er", "rfe-p", "rfe-b", "agem"])
def test_when_a_task_has_ended_no_checkpoint_holds_what_memories_dropped(name: str, tmp_path: Path) -> None:
    """At that event only the newest is there, also after a kill between writing it and removing the others."""
    stream = make_stream((2, 2, 2))
    folders: list[list[str]] = []

    class Look(Observer):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "task":
                folders.append(sorted(path.name for path in tmp_path.iterdir()))

    teach(make_learner(name, stream), stream, checkpoints=tmp_path, checkpoint_seconds=0.0, observer=Look())
    assert folders == [["task-001"], ["task-002"], ["task-003"]]
    (tmp_path / "task-003").rename(tmp_path / "kept")
    teach(make_learner(name, stream), Stream(stream.name, stream.tasks[:2], stream.pixels, stream.image_shape),
          checkpoints=tmp_path, checkpoint_seconds=0.0)  # fmt: skip
    (tmp_path / "kept").rename(tmp_path / "task-003")
    assert len(list(tmp_path.glob("task-*"))) == 2
    teach(make_learner(name, stream), stream, checkpoints=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["task-003"]


def test_a_crash_while_saving_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, "task-001", {"a": torch.ones(2)}, {"n": 1})

    def crash(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr("recollect.engine.checkpoint.os.replace", crash)
        with pytest.raises(UserError, match="task-002 cannot be written .disk full.; .*task-001 is intact. Make room"):
            checkpoint.save(tmp_path, "task-002", {"a": torch.zeros(2)}, {"n": 2})
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert (found[0]["a"].tolist(), found[1]) == ([1.0, 1.0], {"n": 1})
    for name in ("task-001.phase-0.epoch-0003.step-000010", "task-001.phase-1.epoch-0000.step-000001", "task-002"):
        checkpoint.save(tmp_path, name, {"a": torch.zeros(2)}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["task-001.phase-1.epoch-0000.step-000001", "task-002"]


def test_a_crash_while_a_checkpoint_is_replaced_loses_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same name again: killed between the two renames, the old one is still there and is found."""
    checkpoint.save(tmp_path, "task-001", {"a": torch.ones(2)}, {"n": 1})
    original, calls = os.replace, []

    def crash(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        original(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("recollect.engine.checkpoint.os.replace", crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, "task-001", {"a": torch.zeros(2)}, {"n": 2})
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found[1] == {"n": 1}
    checkpoint.save(tmp_path, "task-001", {"a": torch.zeros(2)}, {"n": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["task-001"]
    left = tmp_path / f"task-001{checkpoint.REPLACED}"  # killed before the old one could go
    shutil.copytree(tmp_path / "task-001", left)
    checkpoint.save(tmp_path, "task-001", {"a": torch.zeros(2)}, {"n": 4})
    assert [path.name for path in tmp_path.iterdir()] == ["task-001"]
    assert checkpoint.load_latest(tmp_path)[1] == {"n": 4}


def test_a_read_error_removes_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("task-001", "task-002"):
        checkpoint.save(tmp_path, name, {"a": torch.ones(2)}, {"n": 1})

    def fail(self: Path, mode: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail)
        with pytest.raises(UserError, match=r"task-002 cannot be read .*error.*; repair that and run again"):
            checkpoint.load_latest(tmp_path)
    assert len(checkpoint.ordered(tmp_path)) == 2


def test_checkpoints_of_a_thousand_tasks_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("task-998", "task-999", "task-1000"):
        checkpoint.save(tmp_path, name, {"a": torch.ones(2)}, {})
    assert [path.name for path in checkpoint.ordered(tmp_path)] == ["task-999", "task-1000"]


@pytest.mark.parametrize("successor", ["task-001", "task-002"])
def test_a_checkpoint_replaced_while_it_is_read_is_read_again(
    successor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_load, num_saved = checkpoint.load_tensors, 1
    checkpoint.save(tmp_path, "task-001", {"a": torch.zeros(1)}, {"n": 0}, "run")

    def replace_then_load(path: Path, sha256: str) -> Any:
        nonlocal num_saved
        if num_saved == 1:
            num_saved += 1
            checkpoint.save(tmp_path, successor, {"a": torch.ones(1)}, {"n": 1}, "run")
            if successor != "task-001":
                shutil.rmtree(tmp_path / "task-001")
        return true_load(path, sha256)

    monkeypatch.setattr(checkpoint, "load_tensors", replace_then_load)
    loaded = checkpoint.load_newest(tmp_path, "run")
    assert loaded is not None
    assert (float(loaded[0]["a"]), loaded[1]) == (1.0, {"n": 1})
    with pytest.raises(UserError, match="is of another run"):
        checkpoint.load_newest(tmp_path, "other")
    assert checkpoint.load_newest(tmp_path / "nothing", "run") is None
