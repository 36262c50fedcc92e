"""Sweeps execute every run once, resume interrupted ones, and record why runs failed."""

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

from recollect.errors import StoppedError
from recollect.results import find_results
from recollect.storage import LockedError, lock_folder
from recollect.sweeps import Status, in_process, in_processes, load_preset, plan, sweep
from tests.support import recollect
from tests.sweeps.small import PRESET, RUN_OPTIONS, events, jobs_of


@pytest.mark.filterwarnings("ignore:no validation images")
def test_finished_runs_are_skipped_and_processes_give_the_same_results(preset: Path, tmp_path: Path) -> None:
    jobs = jobs_of(preset)[::2]  # finetune and er, seeds 0 and 1
    first = plan(jobs[:2], tmp_path / "here", device="cpu")
    sweep(first, tmp_path / "here", engine=in_process, **RUN_OPTIONS)
    assert [status.state for status in first] == ["done"] * 2
    assert "recollect run --stream split-digits --method finetune" in first[0].result["command"]  # type: ignore[index]
    again = plan(jobs, tmp_path / "there", [tmp_path / "here"], device="cpu")
    assert [status.state for status in again] == ["done"] * 2 + ["waiting"] * 2
    finished: list[Status] = []
    sweep(again, tmp_path / "there", engine=in_processes(2), on_done=finished.append, **RUN_OPTIONS)
    assert sorted(status.job.name for status in finished) == sorted(status.job.name for status in again[2:])
    alone = plan(jobs[2:], tmp_path / "alone", device="cpu")
    sweep(alone, tmp_path / "alone", engine=in_process, **RUN_OPTIONS)
    for one, other in zip(alone, again[2:], strict=True):
        assert one.result is not None
        assert other.result is not None
        assert (one.result["til"], one.result["cil"]) == (other.result["til"], other.result["cil"])
    assert len(find_results([tmp_path])) == 6


@pytest.mark.filterwarnings("ignore:no validation images")
@pytest.mark.parametrize("num", [1, 2])
def test_a_failed_run_stops_no_other_records_its_reason_and_is_tried_again(
    num: int, preset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    jobs = jobs_of(preset, seeds=[0])[::2]
    (out / jobs[0].name).mkdir(parents=True)
    (out / jobs[0].name / "stranger.txt").write_text("mine")
    engine = in_process if num == 1 else in_processes(num)
    statuses = plan(jobs, out, device="cpu")
    sweep(statuses, out, engine=engine, **RUN_OPTIONS)
    assert [status.state for status in statuses] == ["failed", "done"]
    kept = json.loads((out / "sweep.json").read_text())
    assert "is not a run folder" in kept[jobs[0].name]["reasons"][0]
    (out / jobs[0].name / "stranger.txt").unlink()
    statuses = plan(jobs, out, device="cpu")
    sweep(statuses, out, engine=engine, **RUN_OPTIONS)
    assert [status.state for status in statuses] == ["done"] * 2
    kept = json.loads((out / "sweep.json").read_text())[jobs[0].name]
    assert (kept["state"], kept["attempts"], len(kept["reasons"])) == ("done", 2, 1)


def test_stopped_sweeps_and_killed_workers_resume_to_the_same_results(preset: Path, tmp_path: Path) -> None:
    """SIGINT to the sweep saves what runs; a killed worker's run is started again; nothing is done twice."""
    preset.write_text(PRESET.replace("memory = [4, 8]", "memory = 4"))
    out = tmp_path / "out"
    slow = ["--set", "epochs=12", "stream.train_per_class=40", "--seeds", "0", "--threads", "1"]
    command = [sys.executable, "-m", "recollect", "sweep", str(preset), "--workers", "2", *slow]
    with subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while process.poll() is None and len({e["phase"] for e in events(out, "epoch")}) < 1:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all at once
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert "saved; the same command resumes from here" in said
    started = [path.parent for path in out.rglob("events.jsonl") if not (path.parent / "result.json").exists()]
    assert started
    assert all(any((folder / "checkpoint").glob("task-*")) for folder in started)
    kept = json.loads((out / "sweep.json").read_text())
    assert {entry["state"] for entry in kept.values()} <= {"waiting", "done"}
    assert {entry["attempts"] for entry in kept.values()} == {0, 1}
    with subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not events(out, "resumed"):
            time.sleep(0.05)
        going_on = next(path.parent for path in out.rglob("events.jsonl") if "resumed" in path.read_text())
        os.kill(int((going_on / "lock").read_text()), signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode == 0, said
    done = recollect("sweep", preset, "--out", tmp_path / "whole", *slow)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 runs are done" in done.stdout
    cut, whole = (find_results([folder]) for folder in (out, tmp_path / "whole"))
    outcomes = [
        {result["config"]["hash"]: (result["til"], result["cil"]) for result in results.values()}
        for results in (cut, whole)
    ]
    assert outcomes[0] == outcomes[1]
    assert len(events(out, "finished")) == 3
    assert "exit code -9" in str(json.loads((out / "sweep.json").read_text()))


def test_a_dry_run_lists_runs_with_costs_and_executes_nothing(
    preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.sweeps.estimate.MIN_SECONDS", 0.0)
    done = recollect("sweep", preset, "--out", tmp_path / "out", "--only", "er", "finetune", "--dry-run")
    assert done.returncode == 0, done.stderr
    summary = " ".join(done.stdout.split())
    assert "6 runs, 0 done. To do: about" in summary
    assert re.search(r"one after the other \(between \d+ seconds and \d+ (seconds|minutes)\)", summary)
    assert re.search(r"A GPU would need about \d+ seconds: a guess from the number of operations", summary)
    assert "split-digits/er-memory-8/1" in done.stdout
    assert "split-digits/rfe/1" not in done.stdout
    assert find_results([tmp_path]) == {}
    done = recollect("sweep", "cpu/til", "--show")
    assert 'method = ["lwf", "ewc", "si", "expansion"]' in done.stdout


@pytest.mark.filterwarnings("ignore:no validation images")
def test_a_run_on_other_images_does_not_count_as_done(tmp_path: Path) -> None:
    """The configuration is the same; the data is not, and the second sweep says so."""
    from PIL import Image

    for name, shade in (("a", 40), ("b", 200)):
        for c in ("x", "y"):
            for number in range(3):
                folder = tmp_path / name / c
                folder.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (16, 16), (shade + number, shade, number)).save(folder / f"{number}.png")
    path = tmp_path / "images.toml"
    path.write_text(
        '[for."*"]\n"stream.image_size" = 16\nbackbone = "convnet"\n"backbone.width" = 2\nepochs = 1\n'
        '[[runs]]\nstream = "images"\nmethod = "finetune"'
    )
    jobs = load_preset(str(path)).jobs(precision="fp32")
    for name, state in (("a", "done"), ("a", "done"), ("b", "failed")):
        statuses = plan(jobs, tmp_path / "out", device="cpu")
        assert statuses[0].state == "waiting"
        sweep(statuses, tmp_path / "out", engine=in_process, data_root=tmp_path / name, **RUN_OPTIONS)
        assert statuses[0].state == state
    assert "holds a run on other data" in statuses[0].reasons[-1]


def test_a_second_sweep_of_a_folder_is_refused(preset: Path, tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(LockedError, match="is using"):
        sweep(plan(jobs_of(preset), tmp_path, device="cpu"), tmp_path, engine=in_process, **RUN_OPTIONS)


def test_a_long_reason_does_not_hang_the_sweep(preset: Path, tmp_path: Path) -> None:
    jobs = jobs_of(preset, seeds=[0])[:2]
    for job in jobs:
        (tmp_path / job.name).mkdir(parents=True)
        (tmp_path / job.name / ("x" * 250)).write_text("")
    statuses = plan(jobs, tmp_path, device="cpu")
    sweep(statuses, tmp_path, engine=in_processes(2), data_root=Path("y" * 200_000), **RUN_OPTIONS)
    assert [status.state for status in statuses] == ["failed", "failed"]
    assert all(len(status.reasons[0]) <= 8000 for status in statuses)


def test_a_request_to_stop_is_raised(preset: Path, tmp_path: Path) -> None:
    def engine(todo: Any, options: Any, stop: Any) -> Any:
        stop.number = signal.SIGTERM
        yield from ()

    with pytest.raises(StoppedError):
        sweep(plan(jobs_of(preset), tmp_path / "out", device="cpu"), tmp_path / "out", engine=engine)
