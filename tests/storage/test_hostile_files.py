"""Whatever a file of a run, sweep or model holds: a message and exit code 2, or it is skipped. Never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recollect import ContinualClassifier, resolve, run
from recollect.cli import main
from recollect.storage import seal

CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe\x00{",
    "deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "Infinity": b'{"hash": Infinity, "format": Infinity, "seed": -Infinity}',
    "NaN": b'{"format": NaN, "config": NaN, "current": NaN}',
    "a huge number": b'{"format": 1' + b"0" * 400 + b', "seed": 1e999}',
    "thousands of digits": b'{"seed": ' + b"1" * 5_000 + b"}",
    "half a surrogate": b'{"current": "\\ud800", "hash": "\\ud800", "run": "\\udfff"}',
    "a list": b"[1, 2, 3]",
    "null": b"null",
}
RUN_FILES = ("config.json", "data.json", "result.json", "events.jsonl", "checkpoint/*/state.json")
WRONG = [None, True, -1, 0, 1.5, 10**30, "text", "\ud800", [], {}, [[1]], {"a": 1}]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a memory, a sweep, a model of one task, and a picture."""
    root = tmp_path_factory.mktemp("made")
    settings = {"epochs": 1, "train_per_class": 10, "memory": 4, "backbone.width": 4}
    run(resolve("split-digits", "er", 0, settings, precision="fp32"), root / "run", device="cpu")
    (root / "sweep" / "split-digits" / "er").mkdir(parents=True)
    shutil.copytree(root / "run", root / "sweep" / "split-digits" / "er" / "0")
    entry = {"state": "failed", "attempts": 1, "reasons": ["why"]}
    (root / "sweep" / "sweep.json").write_text(json.dumps({"split-digits/finetune/0": entry}))
    classifier = ContinualClassifier(backbone="convnet", image_size=16, epochs=1, device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), np.uint8)
    with warnings.catch_warnings(action="ignore"):
        classifier.learn((images, ["a", "b"] * 10), "may").save(root / "model")
    (root / "pictures" / "a").mkdir(parents=True)
    Image.fromarray(images[0]).save(root / "pictures" / "a" / "one.png")
    return root


@pytest.fixture
def command(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a command line on a copy of what was made; its exit code and what it wrote to stderr."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["recollect", *arguments])
        code = 0
        with warnings.catch_warnings(action="default"):
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
        return code, capsys.readouterr().err

    return call


def overwrite(folder: Path, pattern: str, data: bytes) -> None:
    paths = list(folder.glob(pattern))
    assert paths, f"{folder} holds no {pattern}"
    for path in paths:
        path.write_bytes(data)


def check_ended(ended: tuple[int, str], *codes: int) -> None:
    code, text = ended
    assert code in codes, text
    assert "Traceback" not in text
    assert code != 2 or text.startswith("recollect: "), text


@pytest.mark.parametrize("file", RUN_FILES)
@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS)
def test_a_run_with_a_hostile_file_gives_a_message(
    data: bytes, file: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    overwrite(tmp_path / "run", file, data)
    if file != "result.json":  # else a finished run is not read any further
        (tmp_path / "run" / "result.json").unlink(missing_ok=True)
    check_ended(command("resume", "run"), 0, 2)
    check_ended(command("audit", "run", "--against", "pictures"), 0, 1, 2)
    if file in ("config.json", "checkpoint/*/state.json"):
        check_ended(command("purge", "run", "--task", "1"), 0, 2)


@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS)
def test_a_sweep_with_hostile_files_gives_a_message(
    data: bytes, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    overwrite(tmp_path / "sweep", "sweep.json", data)
    preset = tmp_path / "own.toml"
    preset.write_bytes(data)
    check_ended(command("sweep", str(preset), "--out", "sweep"), 2)
    preset.write_text(
        '[[runs]]\nstream = "split-digits"\nmethod = "finetune"\nset = {epochs = 1, train_per_class = 10}\n'
    )
    check_ended(command("sweep", str(preset), "--out", "sweep", "--precision", "fp32"), 2)
    overwrite(tmp_path / "sweep", "*/*/*/result.json", data)
    check_ended(command("report", "sweep", "--out", "report"), 2)
    check_ended(command("best", "sweep"), 2)


@pytest.mark.parametrize("file", ["model.json", "versions/*/model.json"])
@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS)
def test_a_model_with_a_hostile_file_gives_a_message(
    data: bytes, file: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    overwrite(tmp_path / "model", file, data)
    for arguments in (["inspect", "model"], ["predict", "model", "pictures/a/one.png"],
                      ["learn", "model", "pictures", "--task", "june"], ["audit", "model"]):  # fmt: skip
        check_ended(command(*arguments), 2)


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": []}, {"mean": []}, {"mean": [0.1, 0.2]}, {"std": [0, 0, 0]}, {"temperature": 0}, {"temperature": -1},
        {"settings": {"epochs": 0}}, {"sha256": 7}, {"checks": []}, {"typical": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_hostile_model_behind_a_matching_seal_gives_a_message(
    change: dict[str, Any], tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    (path,) = (tmp_path / "model" / "versions").glob("*/model.json")
    path.write_text(json.dumps(seal(json.loads(path.read_text()) | change, "digest")))
    for arguments in (["inspect", "model"], ["predict", "model", "pictures/a/one.png"], ["check", "model", "pictures"],
                      ["rollback", "model", "--to", "may"], ["learn", "model", "pictures", "--task", "june"],
                      ):  # fmt: skip
        check_ended(command(*arguments), 2)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: Path(path).symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_pipes_and_devices_are_neither_waited_for_nor_read_without_end(
    make: Callable[[Path], None], tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    for file in ("run/result.json", "run/config.json", "sweep/sweep.json", "model/model.json"):
        (tmp_path / file).unlink(missing_ok=True)
        make(tmp_path / file)
    for arguments in (["report", "run", "--out", "x"], ["best", "run"], ["resume", "run"], ["inspect", "model"],
                      ["sweep", "cpu/digits", "--out", "sweep", "--dry-run"]):  # fmt: skip
        check_ended(command(*arguments), 2)


CONFIG_FIELDS = [
    ("method", "memory"),
    ("method",),
    ("training", "epochs"),
    ("seed",),
    ("precision",),
    ("stream", "name"),
]
RESULT_FIELDS = [
    ("config", "method", "memory"), ("config", "method", "units"), ("config", "training", "epochs"),
    ("config", "stream", "tasks"), ("config", "backbone", "width"), ("config", "precision"),
    ("memory", "bytes"), ("validation", "til"), ("commit",), ("data",),
]  # fmt: skip


@pytest.mark.parametrize("value", [None, 10**30, "text", "\ud800", [[1]]], ids=ascii)
def test_wrong_options_in_results_give_a_message_or_are_shown(
    value: Any, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """One result for each field that is wrong, all in one folder."""
    original = (tmp_path / "run" / "result.json").read_text()
    for number, keys in enumerate(RESULT_FIELDS):
        result = json.loads(original)
        part = result
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
        (tmp_path / "wrong" / str(number)).mkdir(parents=True)
        (tmp_path / "wrong" / str(number) / "result.json").write_text(json.dumps(result))
    check_ended(command("best", "wrong"), 0, 2)
    check_ended(command("report", "wrong", "--out", "report"), 0, 2)


@pytest.mark.parametrize("value", WRONG, ids=ascii)
def test_wrong_options_in_a_config_give_a_message(
    value: Any, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    path = tmp_path / "run" / "config.json"
    original = json.loads(path.read_text())
    (tmp_path / "run" / "result.json").unlink()
    for keys in CONFIG_FIELDS:
        config = json.loads(json.dumps(original))
        part = config
        for key in keys[:-1]:
            part = part[key]
        if part[keys[-1]] == value:
            continue
        part[keys[-1]] = value
        path.write_text(json.dumps(config))
        check_ended(command("resume", "run"), 2)
        check_ended(command("audit", "run", "--expect", "reservoir"), 0, 1, 2)
        check_ended(command("purge", "run", "--task", "1"), 0, 2)


def test_epochs_that_are_no_whole_number_are_refused(command: Callable[..., tuple[int, str]]) -> None:
    for value in ("1" * 5_000, "[" * 5_000, "NaN", "1e999", "\udcff"):
        ended = command("run", "--stream", "split-digits", "--method", "er", "--out", "x", "--set", f"epochs={value}")
        check_ended(ended, 2)
        assert "training.epochs must be a whole number" in ended[1]
