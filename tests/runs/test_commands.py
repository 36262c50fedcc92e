"""The commands run, resume and list: output, exit codes, signals."""

from __future__ import annotations

import inspect
import json
import re
import signal
import subprocess
import sys
import time
from functools import reduce
from pathlib import Path

import pytest
from cyclopts import App

from recollect.cli.base import app
from recollect.methods import methods
from recollect.runs.tuned import Tuned
from recollect.storage import seal
from tests.support import recollect

DIGITS = ["run", "--stream", "split-digits"]
QUICK_RUN = [*DIGITS, "--method", "finetune", "--train-per-class", "4", "--threads", "1"]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_run_writes_the_result_and_the_same_command_shows_it_again(tmp_path: Path) -> None:
    arguments = [*DIGITS, "--method", "rfe-p", "--seed", 4, "--out", tmp_path / "r", "--train-per-class", 10]
    arguments += ["--tasks", 2, "--measure-drift"]
    arguments += ["--set", "epochs=1", "retrospect_epochs=1", "alpha=0.5", "backbone.width=2"]
    done = recollect(*arguments)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["seed"] == 4
    assert result["config"]["method"]["alpha"] == 0.5
    assert result["non_default_options"]["method"] == {"alpha": 0.5, "retrospect_epochs": 1}
    assert result["command"].startswith("recollect run --stream split-digits --method rfe-p")
    row = next(line for line in done.stdout.splitlines() if "task-incremental " in line)
    assert f"{result['til']['average_accuracy']:.1f}" in row
    again = recollect(*arguments)
    assert again.returncode == 0
    assert row in again.stdout
    assert "learned" not in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DIGITS, "--method", "magic", "--out", "r"], "unknown method 'magic'; choose from agem, "),
        ([*DIGITS, "--method", "rfe", "--out", "r", "--set", "alpha"], "--set takes key=value, got 'alpha'"),
        ([*DIGITS, "--method", "rfe", "--out", "r", "--seed", "x"], "Invalid value for --seed"),
        (
            ["run", "--stream", "split-cifar10", "--method", "rfe", "--out", "r", "--data-root", "nowhere"],
            "nowhere is not a folder",
        ),
        (["run", "--method", "rfe", "--out", "r"], "--stream is missing"),
        (["demo", "--seeds", "0"], "--seeds is a number of seeds, at least 1; got 0"),
        (["fly"], 'Unknown command "fly"'),
        (["swep", "cpu/til"], 'Unknown command "swep". Did you mean "sweep"?'),
        (["sweep", "cpu/til", "--dryrun"], "Unknown option: --dryrun. Did you mean --dry-run?"),
        (["sweep", "cpu/til", "--precision", "bf61"], 'Did you mean "bf16"?'),
    ],
)
def test_bad_input_ends_with_a_message_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = recollect(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_best_starts_from_searched_settings_which_set_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Tuned(
        stream="split-digits", method="finetune", settings={"learning_rate": 0.5, "units": "task"},
        where={"stream.tasks": 5}, tried=3, seeds=2, validation=90.0,
    )  # fmt: skip
    monkeypatch.setattr("recollect.runs.tuned.tuned", lambda: [row])
    done = recollect(*QUICK_RUN, "--best", "--out", tmp_path / "r", "--set", "epochs=1", "training.learning_rate=0.01")
    assert done.returncode == 0, done.stderr
    assert "the best of 3 settings by validation accuracy with the task known, 2 seeds (stream.tasks 5)" in done.stdout
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["method"]["units"], config["training"]["learning_rate"]) == ("task", 0.01)
    done = recollect(*DIGITS, "--method", "er", "--best", "--out", tmp_path / "s")
    assert done.returncode == 2
    assert "no search has chosen settings for er on split-digits" in done.stderr
    assert "There are: finetune on split-digits" in done.stderr


def test_list_names_streams_methods_and_backbones() -> None:
    sections = [part.splitlines() for part in recollect("list").stdout.split("\n\n")]
    listed = {title.strip(): [re.split(r"\s", row[2:])[0] for row in rows] for title, *rows in sections}
    assert {"split-digits", "split-tinyimagenet", "images"} <= {*listed["streams"]}
    assert [name for name in listed["methods"] if name] == sorted(methods())
    assert {"resnet18", "vit-s16"} <= {*listed["backbones"]}
    assert {"cpu/digits", "full/til"} <= {*listed["presets"]}


def test_list_shows_the_options_of_a_stream_and_a_method() -> None:
    listed = recollect("list", "--stream", "split-cifar100", "--method", "rfe").stdout
    names = ("method.alpha", "backbone.width", "training.epochs", "stream.class_order")
    for text in (*names, "Weight of the feature-estimation"):
        assert text in listed


def test_help_of_run_shows_its_options() -> None:
    text = recollect("run", "--help").stdout
    names = ("--stream", "--method", "--seed", "--out", "--data-root", "--set", "--train-per-class", "--force")
    for name in (*names, "--measure-drift"):
        assert f"{name} " in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_step_and_the_same_command_resumes_to_the_same_result(
    number: int, code: int, tmp_path: Path
) -> None:
    arguments = [*DIGITS, "--method", "rfe", "--tasks", "3", "--train-per-class", "20", "--threads", "1"]
    arguments += ["--set", "epochs=4", "retrospect_epochs=4", "backbone.width=4", "--out"]
    interrupted, uninterrupted = tmp_path / "interrupted", tmp_path / "uninterrupted"
    command = [sys.executable, "-m", "recollect", *arguments, str(interrupted)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (interrupted / "checkpoint" / "task-001").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    started.send_signal(number)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == code
    assert "Saving… press Ctrl-C again to quit without saving." in errors
    assert "saved; the same command resumes from here" in errors
    assert not (interrupted / "result.json").exists()
    resume = ["resume", str(interrupted), "--threads", "1"]
    again = recollect(*(command[3:] if code == 130 else resume))
    assert again.returncode == 0, again.stderr
    assert "resumes after task" in again.stdout
    done = recollect(*arguments, uninterrupted)
    assert done.returncode == 0, done.stderr
    results = [json.loads((folder / "result.json").read_text()) for folder in (interrupted, uninterrupted)]
    assert [results[0][key] for key in ("til", "cil")] == [results[1][key] for key in ("til", "cil")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "r", "--backbone", "vit-small", "--set", "num_heads=3"], "dim divisible by num_heads"),
        (
            ["--out", "r", "--backbone", "vit-small", "--set", "feature_dim=0"],
            "feature_dim of a ViT lies between 1 and 4096, got 0",
        ),
        (["--out", "r", "--device", "cpu:foo"], "device 'cpu:foo' is not available"),
        (["--out", "/dev/null/x"], "check the path"),
        (["--out", "r", "--set", "tasks=[]"], "got an empty list"),
    ],
)
def test_bad_values_end_with_a_message_and_no_traceback(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = recollect(*QUICK_RUN, *arguments, cwd=tmp_path)
    assert message in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_damaged_files_of_a_run_are_named(tmp_path: Path) -> None:
    out = tmp_path / "r[/b]"  # brackets mean styles to the terminal's library
    arguments = [*QUICK_RUN, "--tasks", 2, "--set", "epochs=1", "backbone.width=2", "--out", out]
    assert recollect(*arguments).returncode == 0
    for text in ("{}", "[]", "null", "{"):
        (out / "result.json").write_text(text)
        done = recollect(*arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert "result.json" in done.stderr
    (out / "result.json").unlink()
    (out / "config.unfinished").write_text("{")  # left by a crash
    assert recollect(*arguments).returncode == 0
    path = sorted((out / "checkpoint").glob("task-*"))[-1] / "state.json"
    state = json.loads(path.read_text())
    state["state"]["record"]["surprise"] = 1
    del state["check"]
    path.write_text(json.dumps(seal(state, "check")))
    (out / "result.json").unlink()
    done = recollect(*arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "does not fit this run" in done.stderr


def test_a_second_process_on_a_run_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    """The system releases the lock of a killed process."""
    out = tmp_path / "run"
    arguments = [*DIGITS, "--method", "finetune", "--threads", "1", "--out", str(out)]
    long = [*arguments, "--set", "epochs=2000"]
    with subprocess.Popen([sys.executable, "-m", "recollect", *long], stdout=subprocess.DEVNULL) as first:
        try:
            deadline = time.monotonic() + 120
            while not (out / "events.jsonl").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            for second in (recollect(*long), recollect("resume", out)):
                assert second.returncode == 2
                assert f"process {first.pid} is using {out}; wait until it ends, or stop it first" in second.stderr
        finally:
            first.kill()
    done = recollect(*arguments, "--force", "--tasks", 2, "--set", "epochs=1", "backbone.width=2")
    assert done.returncode == 0, done.stderr


def test_resuming_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    done = recollect("resume", tmp_path / "nothing")
    assert done.returncode == 2
    assert "nothing holds no run; start one with recollect run --out" in done.stderr


COMMANDS = [(name,) for name in app if not name.startswith("-") and app[name].default_command] + [("stream", "export")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_loses_no_word_of_the_docstring(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as Markdown, where what looks like a tag would vanish."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(re.sub(r"[│╭╰─╮╯]", " ", recollect(*command, "--help").stdout).split())
    documented = reduce(App.__getitem__, command, app).default_command
    about, _, parameters = inspect.cleandoc(documented.__doc__).partition("Parameters\n----------\n")
    lines = about.splitlines() + [line for line in parameters.splitlines() if line.startswith(" ")]
    words = " ".join(lines).replace("`", "").split()
    assert words
    assert [word for word in words if word not in shown] == []


def test_help_joins_the_lines_of_the_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "more accurate. The result is kept" in recollect("learn", "--help").stdout
