"""The workers of a killed sweep end with it, and the same command finishes it."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from recollect.engine import StopRequest, catch_signals
from recollect.errors import StoppedError
from recollect.storage import LockedError, lock_folder
from recollect.sweeps import execute, in_process, plan, sweep
from tests.sweeps.small import PRESET, RUN_OPTIONS, events, jobs_of


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_workers_end_with_a_killed_sweep_and_the_same_command_finishes_it(preset: Path, tmp_path: Path) -> None:
    """They save first, though nothing reads their output; the second sweep starts before they have ended."""
    preset.write_text(PRESET[: PRESET.rindex("[[runs]]")])  # two runs
    out = tmp_path / "out"
    slow = ["--set", "epochs=15", "stream.train_per_class=40", "--seeds", "0", "--threads", "1", "--precision", "fp32"]
    command = [sys.executable, "-m", "recollect", "sweep", str(preset), "--workers", "2", *slow, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while (
            process.poll() is None
            and sum(bool(events(log.parent, "epoch")) for log in out.glob("*/*/*/events.jsonl")) < 2
        ):
            time.sleep(0.05)
        holders = [int(path.read_text()) for path in out.glob("*/*/*/lock")]
        assert len(holders) == 2
        assert all(map(is_alive, holders))
        process.kill()
    killed = time.monotonic()
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while any(map(is_alive, holders)) and time.monotonic() - killed < 25:
        time.sleep(0.05)
    assert not any(map(is_alive, holders))
    said = done.communicate()
    assert done.returncode == 0, said
    assert "2 of 2 runs are done" in said[0]
    assert len(events(out, "stopped")) == 2
    assert len(events(out, "finished")) == 2


@pytest.mark.filterwarnings("ignore:no validation images")
def test_a_run_locked_by_another_process_is_waited_for_up_to_a_limit(
    preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(preset, seeds=[0])[:1]
    (tmp_path / jobs[0].name).mkdir(parents=True)
    locked: list[bool] = []
    held = ExitStack()
    original = execute.do_run

    def do_run(*args: Any, **options: Any) -> str | None:
        try:
            reason = original(*args, **options)
        except LockedError:
            locked.append(True)
            if len(locked) == 3:
                held.close()
            raise
        locked.append(False)
        return reason

    monkeypatch.setattr(execute, "do_run", do_run)
    monkeypatch.setattr(execute, "WAIT_SECONDS", 0.0)
    with held:
        held.enter_context(lock_folder(tmp_path / jobs[0].name))
        with monkeypatch.context() as patched:
            patched.setattr(execute, "LOCKED_SECONDS", -1.0)
            statuses = plan(jobs, tmp_path, device="cpu")
            sweep(statuses, tmp_path, engine=in_process, **RUN_OPTIONS)
        assert [status.state for status in statuses] == ["failed"]
        statuses = plan(jobs, tmp_path, device="cpu")
        sweep(statuses, tmp_path, engine=in_process, **RUN_OPTIONS)
    assert [status.state for status in statuses] == ["done"]
    assert locked == [True, True, True, False]


def test_a_request_to_stop_while_waiting_for_a_lock_is_raised(preset: Path, tmp_path: Path) -> None:
    jobs = jobs_of(preset, seeds=[0])[:1]
    folder = tmp_path / jobs[0].name
    folder.mkdir(parents=True)
    stop = StopRequest()
    stop.number = signal.SIGTERM
    with lock_folder(folder), pytest.raises(StoppedError):
        execute.do_run_when_unlocked(jobs[0].config.to_json(), folder, RUN_OPTIONS, stop=stop)


def test_a_request_to_stop_works_with_stderr_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    with catch_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
    assert stop.number == signal.SIGTERM
