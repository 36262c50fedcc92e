"""Full disks, folders without permission, and corrupt checkpoints are reported; nothing is lost."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recollect.audit import take_inventory
from recollect.engine import checkpoint
from recollect.errors import UserError
from recollect.storage import seal
from recollect.storage.tensors import hash_file
from tests.support import StopAt, StopError, make_learner, make_stream, recollect, teach


def small_run(out: Path) -> list[str]:
    options = ["--stream", "split-digits", "--method", "expansion", "--tasks", "3", "--train-per-class", "20"]
    return ["run", *options, "--set", "epochs=2", "backbone.width=4", "--threads", "1", "--out", str(out)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "uninterrupted"
    assert recollect(*small_run(out)).returncode == 0
    return out


def outcome(out: Path) -> tuple[object, object, bytes]:
    result = json.loads((out / "result.json").read_text())
    return result["til"], result["cil"], (out / "checkpoint" / "task-003" / "state.safetensors").read_bytes()


def test_a_full_disk_is_reported_and_the_last_checkpoint_stays(tmp_path: Path, uninterrupted: Path) -> None:
    """The system refuses files above a size, as a full disk does, once the model has grown to it; then it resumes."""
    out = tmp_path / "run"
    size = (uninterrupted / "checkpoint" / "task-003" / "state.safetensors").stat().st_size
    most = size * 5 // 4  # less than with the moments of Adam

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [sys.executable, "-m", "recollect", *small_run(out)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be written" in done.stderr
    assert "is intact" in done.stderr
    assert not (out / "checkpoint" / "unfinished").exists()
    kept = checkpoint.newest(out / "checkpoint")
    assert kept is not None
    assert checkpoint.load_one(kept).tensors
    done = recollect(*small_run(out))
    assert done.returncode == 0, done.stderr
    assert outcome(out) == outcome(uninterrupted)


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_run_resumes(
    tmp_path: Path, uninterrupted: Path
) -> None:
    """A file in the folder's place stops everybody, also root, who may write anywhere."""
    out = tmp_path / "run"
    kept, aside = out / "checkpoint", tmp_path / "aside"
    command = [sys.executable, "-m", "recollect", *small_run(out), "--checkpoint-every", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        while process.poll() is None and checkpoint.newest(kept) is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        kept.rename(aside)
        kept.write_text("")
        process.send_signal(signal.SIGCONT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert (process.returncode, "Traceback" in said) == (2, False)
    assert "cannot be written" in said
    kept.unlink()
    aside.rename(kept)
    assert recollect(*small_run(out)).returncode == 0
    assert outcome(out) == outcome(uninterrupted)


def test_a_folder_without_write_permission_is_named(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() == 0:  # whom only the kernel's own folders keep out
        locked = Path("/proc")
    done = recollect("run", "--stream", "split-digits", "--method", "finetune", "--out", locked / "run")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"{locked / 'run'}" in done.stderr
    assert "check the path, its permissions and the free space" in done.stderr


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces cut out, doubled or overwritten with extreme numbers."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(5):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + rng.randrange(1, 200)]
            case 2:
                changed[at:at] = changed[at : at + rng.randrange(1, 200)]
            case 3:
                changed[at : at + 8] = rng.choice([b"\xff" * 8, b"\x00" * 8, b"99999999", b'"]}[{"', b"1e999999"])
            case _:
                del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("file", ["state.safetensors", "state.json"])
def test_thousands_of_mutated_checkpoints_are_refused_without_a_crash(file: str, tmp_path: Path) -> None:
    """Behind a matching hash, as a stranger could make it: a clear refusal or a load, never anything else."""
    stream = make_stream()
    teach(make_learner("rfe-p", stream), stream, checkpoints=tmp_path)
    (path,) = checkpoint.ordered(tmp_path)
    whole = {name: (path / name).read_bytes() for name in ("state.safetensors", "state.json")}
    rng = random.Random(file)
    refused = 0
    for _ in range(1500):
        (path / file).write_bytes(mutated(whole[file], rng))
        if file == "state.safetensors":  # a stranger can make the hash fit
            about = json.loads(whole["state.json"])
            about["sha256"] = hash_file(path / file)
            del about["check"]
            (path / "state.json").write_text(json.dumps(seal(about, "check")))
        try:
            checkpoint.load_one(path)
            take_inventory(tmp_path)
        except UserError:
            refused += 1
    assert refused > 750


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one leaf or branch replaced, taken away or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        kept = {name: each for name, each in value.items() if name != key}
        return kept if rng.random() < 0.1 else kept | {key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return value[:at] + [changed(value[at], rng)] * rng.randrange(3) + value[at + 1 :]
    return rng.choice(
        [None, -1, 0, 1, 7, 10**12, -(10**30), 1e300, "", "x", "1", [], {}, [[]], True, [1.5], {"a": None}]
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mutated_states_are_resumed_or_refused(tmp_path: Path) -> None:
    """Inside a phase and after a task, behind matching hashes: a run goes on or says what is wrong, within bounds."""
    stream = make_stream()
    options = {"checkpoints": tmp_path / "cut", "checkpoint_seconds": 0.0}
    with pytest.raises(StopError):
        teach(make_learner("rfe-p", stream, epochs=2), stream, observer=StopAt(50), **options)
    teach(make_learner("rfe-p", stream, epochs=2), stream, checkpoints=tmp_path / "whole")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rng = random.Random(0)
    refused = went_on = 0
    for kind, num in (("cut", 40), ("whole", 120)):
        path = checkpoint.ordered(tmp_path / kind)[-1]
        good = checkpoint.load_one(path)
        for number in range(num):
            folder = tmp_path / f"{kind}-{number}"
            tensors = dict(good.tensors)
            state = good.state
            if number % 4:
                state = {key: changed(part, rng) if rng.random() < 0.7 else part for key, part in state.items()}
            else:
                name = rng.choice(sorted(tensors))
                tensor = tensors.pop(name)
                tensors[rng.choice([name, name + "x", "fit.9.exp_avg", "other.x"])] = tensor.flatten()[:1].repeat(3)
            checkpoint.save(folder, path.name, tensors, state, good.run)
            try:
                teach(make_learner("rfe-p", stream, epochs=2), stream, checkpoints=folder)
                went_on += 1
            except UserError:
                refused += 1
    assert refused > 40
    assert went_on > 10  # a changed number is still a number
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
    assert grown < (256 << 10 if sys.platform != "darwin" else 256 << 20)  # nothing was allocated on a file's word
