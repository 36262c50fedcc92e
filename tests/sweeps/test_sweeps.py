"""Presets describe runs; sweeps do them once, go on, and keep the reasons of failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import StoppedError, UserError
from recollect.runs import command_of, find_results, parse, resolve
from recollect.sweeps import (
    in_process,
    in_processes,
    load_preset,
    plan,
    preset_names,
    sweep,
)
from recollect.sweeps.preset import Job
from tests.runs.test_runs import recollect

PRESET = """
about = "small"
seeds = [0, 1]

[for."*"]
epochs = 1
"stream.tasks" = 2
"stream.train_per_class" = 5
"backbone.width" = 2

[for."rfe*"]
retrospect_epochs = 1

[[runs]]
stream = "split-digits"
method = ["finetune", "rfe"]

[[runs]]
stream = "split-digits"
method = "er"
set = { memory = [4, 8] }
"""
WORDS = {"device": "cpu", "threads": 1}


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(PRESET)
    return path


def jobs_of(preset: Path, **words: Any) -> list[Job]:
    return load_preset(str(preset)).jobs(precision="fp32", **words)


def test_every_preset_of_the_package_gives_runs_and_every_paper_one_has_a_twin() -> None:
    names = preset_names()
    assert {name for name in names if name.startswith("paper/")} == {
        f"paper/{each}"
        for each in ("til", "cil", "time", "space", "ablation", "vit", "grid", "heatmap", "long-chain", "pca", "rmse")
    }
    assert {name.replace("paper/", "cpu/") for name in names if name.startswith("paper/")} <= set(names)
    for name in names:
        preset = load_preset(name)
        assert preset.about
        assert preset.jobs()
    assert load_preset("paper/cil").jobs() == load_preset("paper/til").jobs()


def test_paper_presets_have_the_papers_settings() -> None:
    jobs = {job.name: job.config for job in load_preset("paper/til").jobs()}
    assert len([name for name in jobs if name.startswith("split-cifar100/")]) == 3 * (3 + 7 * 2 + 2 * 2 + 3)
    config = jobs["split-cifar100/derpp-memory-1000/2"]
    assert (config.training.epochs, config.training.learning_rate, config.training.batch_size) == (40, 5e-4, 32)
    assert (config.method_options.memory, config.seed, config.backbone_options["width"]) == (1000, 2, 64)
    chain = {job.config.stream_options.tasks for job in load_preset("paper/long-chain").jobs()}
    assert chain == {20}
    (drift,) = load_preset("paper/rmse").jobs()
    assert (drift.config.stream_options.tasks, drift.config.method_options.alpha, drift.config.measure_drift) == (
        10,
        0,
        True,
    )
    vit = load_preset("paper/vit").jobs()[0].config
    assert (vit.backbone, vit.training.epochs, vit.training.learning_rate) == ("vit-s16", 30, 1e-5)


def test_settings_apply_by_pattern_and_lists_expand(preset: Path) -> None:
    jobs = jobs_of(preset)
    assert [job.name for job in jobs[:4]] == [
        "split-digits/finetune/0", "split-digits/rfe/0", "split-digits/er-memory-4/0", "split-digits/er-memory-8/0",
    ]  # fmt: skip
    assert {job.config.seed for job in jobs[4:]} == {1}
    assert jobs[1].config.method_options.retrospect_epochs == 1
    assert all(job.config.training.epochs == 1 for job in jobs)
    more = jobs_of(preset, seeds=[7], extra=parse(["stream.class_order=seeded", "epochs=2"]))
    assert {(job.config.seed, job.config.training.epochs) for job in more} == {(7, 2)}
    assert all(job.config.stream_options.class_order == "seeded" for job in more)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seeds = [0]", "has a run without stream or method"),
        ("about = ", "is no TOML"),
        (PRESET.replace("about", "abuot"), "has 'abuot'; it may have"),
        (PRESET.replace("seeds = [0, 1]", 'seeds = "0"'), "has the seeds '0'"),
        (PRESET.replace('method = "er"', 'method = "err"'), "unknown method 'err'; did you mean"),
        (PRESET.replace('method = "er"', 'method = "er"\nsteam = 1'), "has 'steam' in a run"),
        (PRESET.replace("memory = [4, 8]", "memry = 4"), "no option is called 'memry'"),
        (PRESET + '[[runs]]\nstream = "split-digits"\nmethod = "finetune"\nfixed_heads = true', "two runs are called"),
        ("runs = 5", "has runs = 5; write"),
        ('for = "rfe"', "has for = 'rfe'; write"),
        (PRESET.replace('method = "er"', "method = 5"), "has method = 5 in a run; give a name"),
        ("like = 3", "is like 3; give the name of a preset"),
        (PRESET.replace("{ memory = [4, 8] }", "3"), "has the settings 3 in a run"),
        (PRESET.replace('method = "er"', 'method = "er"\nmeasure_drift = "no"'), "measure_drift = 'no' in a run"),
        ('like = "paper/tli"', "unknown preset 'paper/tli'; did you mean 'paper/til'"),
    ],
)  # fmt: skip
def test_a_wrong_preset_is_refused_with_what_is_wrong(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=says.replace("[", r"\[")):
        load_preset(str(path)).jobs()


def test_presets_like_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "circle.toml"
    path.write_text(f'like = "{path}"')
    with pytest.raises(UserError, match="in a circle"):
        load_preset(str(path))


def test_a_runs_command_line_makes_the_same_configuration() -> None:
    from recollect.cli.app import app

    for job in [*load_preset("cpu/vit").jobs(), *load_preset("paper/rmse").jobs()]:
        words = command_of(job.config, Path("out"), 3).split()[1:]
        _, bound, _ = app.parse_args(words)
        given = bound.arguments
        options = {key: given[key] for key in ("measure_drift", "precision") if key in given}
        again = resolve(given["stream"], given["method"], given["seed"], parse(given.get("set", [])), **options)
        assert again.hash == job.config.hash
        assert given["threads"] == 3


@pytest.mark.filterwarnings("ignore:no validation images")
def test_what_is_done_is_skipped_wherever_it_lies_and_processes_give_the_same(preset: Path, tmp_path: Path) -> None:
    jobs = jobs_of(preset)
    first = plan(jobs[:4], tmp_path / "here", device="cpu")
    sweep(first, tmp_path / "here", engine=in_process, **WORDS)
    assert [status.state for status in first] == ["done"] * 4
    assert "recollect run --stream split-digits --method finetune" in first[0].result["command"]  # type: ignore[index]
    again = plan(jobs, tmp_path / "there", [tmp_path / "here"], device="cpu")
    assert [status.state for status in again] == ["done"] * 4 + ["waiting"] * 4
    told: list[str] = []
    sweep(again, tmp_path / "there", engine=in_processes(2), told=lambda s: told.append(s.job.name), **WORDS)
    assert sorted(told) == sorted(status.job.name for status in again[4:])
    alone = plan(jobs[4:6], tmp_path / "alone", device="cpu")
    sweep(alone, tmp_path / "alone", engine=in_process, **WORDS)
    for one, other in zip(alone, again[4:6], strict=True):
        assert one.result is not None
        assert other.result is not None
        assert (one.result["til"], one.result["cil"]) == (other.result["til"], other.result["cil"])
    assert len(find_results([tmp_path])) == 10


@pytest.mark.filterwarnings("ignore:no validation images")
@pytest.mark.parametrize("num", [1, 2])
def test_a_failure_stops_no_other_run_keeps_its_reason_and_is_tried_again(
    num: int, preset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    jobs = jobs_of(preset, seeds=[0])
    (out / jobs[1].name).mkdir(parents=True)
    (out / jobs[1].name / "stranger.txt").write_text("mine")
    engine = in_process if num == 1 else in_processes(num)
    statuses = plan(jobs, out, device="cpu")
    sweep(statuses, out, engine=engine, **WORDS)
    assert [status.state for status in statuses] == ["done", "failed", "done", "done"]
    kept = json.loads((out / "sweep.json").read_text())
    assert "is no run folder" in kept[jobs[1].name]["reasons"][0]
    (out / jobs[1].name / "stranger.txt").unlink()
    statuses = plan(jobs, out, device="cpu")
    sweep(statuses, out, engine=engine, **WORDS)
    assert [status.state for status in statuses] == ["done"] * 4
    kept = json.loads((out / "sweep.json").read_text())[jobs[1].name]
    assert (kept["state"], kept["attempts"], len(kept["reasons"])) == ("done", 2, 1)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    logs = [Path(parent, "events.jsonl") for parent, _, files in os.walk(folder) if "events.jsonl" in files]
    lines = [line for path in logs for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_stopped_and_killed_sweeps_go_on_to_the_same_results(preset: Path, tmp_path: Path) -> None:
    """SIGINT to the sweep saves what runs; a killed worker's run is started again; nothing is done twice."""
    out = tmp_path / "out"
    slow = ["--set", "epochs=30", "stream.train_per_class=40", "--seeds", "0", "--threads", "1"]
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
    begun = [path.parent for path in out.rglob("events.jsonl") if not (path.parent / "result.json").exists()]
    assert begun
    assert all(any((folder / "checkpoint").glob("task-*")) for folder in begun)
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
    assert "4 of 4 runs are done" in done.stdout
    cut, whole = (find_results([folder]) for folder in (out, tmp_path / "whole"))
    outcomes = [
        {found["config"]["hash"]: (found["til"], found["cil"]) for found in each.values()} for each in (cut, whole)
    ]
    assert outcomes[0] == outcomes[1]
    assert len(events(out, "finished")) == 4
    assert "exit code -9" in str(json.loads((out / "sweep.json").read_text()))


def test_the_dry_run_lists_runs_with_costs_and_does_nothing(preset: Path, tmp_path: Path) -> None:
    done = recollect("sweep", preset, "--out", tmp_path / "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "8 runs, 0 done. To do: about" in done.stdout
    assert "split-digits/er-memory-8/1" in done.stdout
    assert find_results([tmp_path]) == {}
    done = recollect("sweep", "cpu/til", "--show")
    assert 'method = ["lwf", "ewc", "si", "expansion"]' in done.stdout


@pytest.mark.filterwarnings("ignore:no validation images")
def test_a_folder_of_other_images_is_not_taken_for_done(tmp_path: Path) -> None:
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
        sweep(statuses, tmp_path / "out", engine=in_process, data_root=tmp_path / name, **WORDS)
        assert statuses[0].state == state
    assert "holds a run on other data" in statuses[0].reasons[-1]


def test_a_second_sweep_of_a_folder_is_refused(preset: Path, tmp_path: Path) -> None:
    from recollect.storage import lock_folder

    with lock_folder(tmp_path), pytest.raises(UserError, match="is working on"):
        sweep(plan(jobs_of(preset), tmp_path, device="cpu"), tmp_path, engine=in_process, **WORDS)


def test_a_long_reason_does_not_hang_the_sweep(preset: Path, tmp_path: Path) -> None:
    jobs = jobs_of(preset, seeds=[0])[:2]
    for job in jobs:
        (tmp_path / job.name).mkdir(parents=True)
        (tmp_path / job.name / ("x" * 250)).write_text("")
    statuses = plan(jobs, tmp_path, device="cpu")
    sweep(statuses, tmp_path, engine=in_processes(2), data_root=Path("y" * 200_000), **WORDS)
    assert [status.state for status in statuses] == ["failed", "failed"]
    assert all(len(status.reasons[0]) <= 8000 for status in statuses)


def test_a_listed_setting_given_again_is_refused_as_the_same_run_twice(preset: Path) -> None:
    preset.write_text(PRESET.replace('method = ["finetune", "rfe"]', 'method = "derpp"'))
    with pytest.raises(UserError, match="er-memory-4/0 and .*er-memory-8/0 are the same run; leave one of them out"):
        jobs_of(preset, extra={"memory": 6})


def test_a_stop_in_this_process_is_raised(preset: Path, tmp_path: Path) -> None:
    def engine(todo: Any, words: Any, stop: Any) -> Any:
        stop.number = signal.SIGTERM
        yield from ()

    with pytest.raises(StoppedError):
        sweep(plan(jobs_of(preset), tmp_path / "out", device="cpu"), tmp_path / "out", engine=engine)
