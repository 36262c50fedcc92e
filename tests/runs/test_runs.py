"""Configs, run folders and the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import UserError
from recollect.methods import methods
from recollect.runs import RunConfig, resolve, run
from recollect.storage import seal

QUICK = {"train_per_class": 10, "epochs": 1, "backbone.width": 2, "tasks": 2}
QUICK_RFE = QUICK | {"retrospect_epochs": 1, "auxiliary_dim": 4, "projection_dim": 4}


def recollect(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "recollect", *map(str, words)], capture_output=True, text=True, cwd=cwd, env=environment
    )


def test_a_stream_brings_its_protocol_and_settings_win() -> None:
    config = resolve("split-digits", "rfe", 3, {"alpha": 0, "backbone.width": 4, "stream.tasks": 10})
    assert config.backbone == "convnet"
    assert config.training.epochs == 15
    assert config.method_options.retrospect_epochs == 40
    assert config.method_options.alpha == 0.0
    assert config.backbone_options == {"width": 4}
    assert config.stream_options.tasks == 10


def test_real_streams_default_to_the_papers_settings() -> None:
    config = resolve("split-cifar100", "rfe-b", 0)
    assert (config.backbone, dict(config.backbone_options)["width"]) == ("resnet18", 64)
    assert (config.training.epochs, config.training.learning_rate, config.training.batch_size) == (40, 5e-4, 32)
    assert (config.training.patience, config.training.factor) == (3, 0.1)
    options = config.method_options
    assert (options.alpha, options.memory, options.auxiliary_dim, options.projection_dim) == (1.0, 500, 128, 128)
    assert (options.retrospect_epochs or config.training.epochs, options.retrospect_learning_rate) == (40, 5e-3)
    assert (config.stream_options.crop_padding, config.stream_options.validation) == (4, 0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alhpa": 1}, "no option is called 'alhpa'; there are .*method.alpha"),
        ({"alpha": "high"}, "method.alpha must be a number, got 'high'"),
        ({"alpha": -1}, "alpha"),
        ({"keep": "some"}, "method.keep must be none | previous | reservoir"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, "training.epochs must be a whole number, got 1.5"),
        ({"epochs": True}, "training.epochs must be a whole number"),
        ({"backbone": "vgg"}, "unknown backbone 'vgg'; choose from convnet"),
        ({"auxiliary_dim": 7}, "auxiliary_dim must be even, got 7"),
        ({"tasks": [["1"], 2]}, "stream.tasks must be a whole number | a list"),
    ],
)
def test_bad_settings_are_named_with_the_remedy(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message) if "|" in message else message):
        resolve("split-digits", "rfe", 0, settings)


@pytest.mark.parametrize("name", sorted(methods()))
def test_config_json_rebuilds_the_config(name: str) -> None:
    config = resolve("split-digits", name, 7, {"epochs": 3}, fixed_heads=True, measure_drift=True, precision="bf16")
    again = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.hash == config.hash
    edited = config.to_json() | {"seed": 8}
    with pytest.raises(UserError, match="does not match its own hash"):
        RunConfig.from_json(edited)
    with pytest.raises(UserError, match="not a run's config"):
        RunConfig.from_json({"stream": "x"})


def test_every_setting_changes_the_hash() -> None:
    base = resolve("split-digits", "rfe", 0)
    others = [
        resolve("split-digits", "rfe", 1),
        resolve("split-digits", "rfe-p", 0),
        resolve("split-digits", "rfe", 0, {"alpha": 2}),
    ]
    others += [resolve("split-digits", "rfe", 0, precision="bf16"), resolve("split-digits", "rfe", 0, {"width": 8})]
    assert len({config.hash for config in [base, *others]}) == 6


MATRIX_KEYS = [
    "average_accuracy",
    "backward_transfer",
    "forgetting",
    "forward_transfer",
    "incremental_accuracy",
    "matrix",
]


def test_result_json_has_the_promised_contents_and_repeats_to_the_bit(tmp_path: Path) -> None:
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
    assert set(written["seconds"]) == {"fit", "retrospect", "evaluate"}
    assert written["parameters"]["training"] > written["parameters"]["inference"] > 0
    assert written["commit"]
    again = run(config, tmp_path / "b", device="cpu")
    assert (again["til"], again["cil"], again["drift"]) == (result["til"], result["cil"], result["drift"])
    events = [json.loads(line) for line in (tmp_path / "a" / "events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "started"
    assert events[-1]["event"] == "finished"
    assert sum(e["event"] == "epoch" for e in events) == 2 + 2  # one epoch a phase, two phases a task


def test_methods_without_a_chain_say_so_and_count_their_memory(tmp_path: Path) -> None:
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
        with pytest.raises(UserError, match=r"holds 'thesis.txt' and is no run folder"):
            run(config, tmp_path / "mine", device="cpu", force=force)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_the_run_command(tmp_path: Path) -> None:
    words = [
        "run",
        "--stream",
        "split-digits",
        "--method",
        "rfe-p",
        "--seed",
        4,
        "--out",
        tmp_path / "r",
        "--train-per-class",
        10,
    ]
    words += [
        "--tasks",
        2,
        "--measure-drift",
        "--set",
        "epochs=1",
        "retrospect_epochs=1",
        "alpha=0.5",
        "backbone.width=2",
    ]
    done = recollect(*words)
    assert done.returncode == 0, done.stderr
    assert "task-incremental" in done.stdout
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["seed"] == 4
    assert result["config"]["method"]["alpha"] == 0.5
    assert result["command"].startswith("recollect run --stream split-digits --method rfe-p")
    again = recollect(*words)
    assert again.returncode == 0
    assert "learned" not in again.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", "--stream", "split-digits", "--method", "magic", "--out", "r"],
            "unknown method 'magic'; choose from agem, ",
        ),
        (
            ["run", "--stream", "split-digits", "--method", "rfe", "--out", "r", "--set", "alpha"],
            "--set takes key=value, got 'alpha'",
        ),
        (["run", "--stream", "split-digits", "--method", "rfe", "--out", "r", "--seed", "x"], "seed"),
        (
            ["run", "--stream", "split-cifar10", "--method", "rfe", "--out", "r", "--data-root", "nowhere"],
            "nowhere is not a folder",
        ),
        (["run", "--method", "rfe", "--out", "r"], "stream"),
        (["demo", "--seeds", "0"], "--seeds counts seeds, got 0"),
        (["fly"], "fly"),
    ],
)
def test_bad_input_ends_with_a_message_and_exit_code_2(words: list[str], message: str, tmp_path: Path) -> None:
    done = recollect(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_list_and_help_are_complete() -> None:
    listed = recollect("list").stdout
    for name in (
        "split-digits",
        "split-tinyimagenet",
        "images",
        "rfe-b",
        "finetune",
        "resnet18",
        "vit-s16",
        "MLP([f, h]) + f",
    ):
        assert name in listed
    options = recollect("list", "--stream", "split-cifar100", "--method", "rfe").stdout
    for option in (
        "method.alpha",
        "backbone.width",
        "training.epochs",
        "stream.class_order",
        "Weight of the feature-estimation",
    ):
        assert option in options
    text = recollect("run", "--help").stdout
    for option in (
        "--stream",
        "--method",
        "--seed",
        "--out",
        "--data-root",
        "--set",
        "--train-per-class",
        "--measure-drift",
        "--force",
    ):
        assert option in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_step_and_the_same_command_goes_on_to_the_same_result(
    number: int, code: int, tmp_path: Path
) -> None:
    words = ["--stream", "split-digits", "--method", "rfe", "--tasks", "3", "--train-per-class", "20", "--threads", "1"]
    settings = ["--set", "epochs=4", "retrospect_epochs=4", "backbone.width=4"]
    command = [sys.executable, "-m", "recollect", "run", "--out", str(tmp_path / "cut"), *words, *settings]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "cut" / "checkpoint" / "task-001").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    started.send_signal(number)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == code
    assert "finishing the step and saving; once more to stop at once" in errors
    assert "saved; the same command resumes from here" in errors
    assert not (tmp_path / "cut" / "result.json").exists()
    resume = [sys.executable, "-m", "recollect", "resume", str(tmp_path / "cut"), "--threads", "1"]
    again = subprocess.run(command if code == 130 else resume, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "resumes after task" in again.stdout
    whole = recollect("run", "--out", tmp_path / "whole", *words, *settings)
    assert whole.returncode == 0, whole.stderr
    cut, whole = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("cut", "whole"))
    assert (cut["til"], cut["cil"]) == (whole["til"], whole["cil"])


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


def test_tensors_and_a_module_of_ones_own_reach_a_run_folder(tmp_path: Path) -> None:
    from torch import nn

    from tests.support import make_stream

    stream = make_stream((2, 2))
    settings = {"backbone": "own", "epochs": 1, "auxiliary_dim": 4, "retrospect_epochs": 1}
    config = resolve("tensors", "rfe", 0, settings)
    own = nn.Sequential(nn.Flatten(), nn.Linear(768, 6))
    result = run(config, tmp_path / "r", device="cpu", stream=stream, backbone=own)
    assert result["config"]["backbone"] == {"name": "own"}
    assert result["til"]["average_accuracy"] is not None
    with pytest.raises(UserError, match="given in Python|goes with backbone='own'"):
        run(config, tmp_path / "other", device="cpu", stream=stream)
    with pytest.raises(UserError, match="made in Python"):
        run(resolve("tensors", "rfe", 0), tmp_path / "third", device="cpu")


def test_the_vit_brings_the_papers_schedule() -> None:
    config = resolve("split-cifar100", "rfe", 0, {"backbone": "vit-s16"})
    assert (config.training.epochs, config.training.learning_rate) == (30, 1e-5)
    assert config.method_options.retrospect_learning_rate == 5e-3
    assert resolve("split-cifar100", "rfe", 0, {"backbone": "vit-s16", "epochs": 2}).training.epochs == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": float("nan")}, "method.alpha must be a number, got nan"),
        ({"alpha": float("inf")}, "method.alpha must be a number, got inf"),
        ({"learning_rate": 10**400}, "training.learning_rate must be a number"),
        ({"alpha": 2, "method.alpha": 3}, "alpha and method.alpha are the same option"),
        ({"image_size": 32}, "no option is called 'image_size'"),
    ],
)
def test_values_that_are_no_numbers_or_given_twice_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("split-digits", "rfe", 0, settings)


QUICK_WORDS = ["run", "--stream", "split-digits", "--method", "finetune", "--train-per-class", "4", "--threads", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
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
def test_what_used_to_end_in_a_traceback_does_not(words: list[str], message: str, tmp_path: Path) -> None:
    done = recollect(*QUICK_WORDS, *words, cwd=tmp_path)
    assert message in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_damaged_files_of_a_run_are_named_and_odd_folder_names_work(tmp_path: Path) -> None:
    out = tmp_path / "r[/b]"
    words = [*QUICK_WORDS, "--tasks", 2, "--set", "epochs=1", "backbone.width=2", "--out", out]
    assert recollect(*words).returncode == 0
    for text in ("{}", "[]", "null", "{"):
        (out / "result.json").write_text(text)
        done = recollect(*words)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert "result.json" in done.stderr
    (out / "result.json").unlink()
    (out / "config.unfinished").write_text("{")
    assert recollect(*words).returncode == 0  # goes on from the checkpoint; what a kill left aside does not matter
    state = sorted((out / "checkpoint").glob("task-*"))[-1] / "state.json"
    held = json.loads(state.read_text())
    held["state"]["record"]["surprise"] = 1
    del held["check"]
    state.write_text(json.dumps(seal(held, "check")))
    (out / "result.json").unlink()
    done = recollect(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "does not fit this run" in done.stderr


def test_the_commit_tells_whether_the_code_was_changed(tmp_path: Path) -> None:
    """In a checkout of its own: clean, then with a method changed, then with a new one."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True
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


def test_auto_precision_is_decided_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_second_process_on_a_run_folder_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    """Also when the first was killed: the lock dies with its holder."""
    out = tmp_path / "run"
    words = ["--stream", "split-digits", "--method", "finetune", "--threads", "1", "--out", str(out)]
    long = [*words, "--set", "epochs=2000"]
    with subprocess.Popen([sys.executable, "-m", "recollect", "run", *long], stdout=subprocess.DEVNULL) as first:
        try:
            deadline = time.monotonic() + 120
            while not (out / "events.jsonl").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            for second in (recollect("run", *long), recollect("resume", out)):
                assert second.returncode == 2
                assert f"process {first.pid} is working on {out}; wait for it, or stop it first" in second.stderr
        finally:
            first.kill()
    done = recollect("run", *words, "--force", "--tasks", 2, "--set", "epochs=1", "backbone.width=2")
    assert done.returncode == 0, done.stderr


def test_resume_names_what_is_missing(tmp_path: Path) -> None:
    done = recollect("resume", tmp_path / "nothing")
    assert done.returncode == 2
    assert "nothing holds no run; begin one with recollect run --out" in done.stderr
