"""The tutorial is generated from its recorded results, and its commands work: here on the bundled digits."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import recollect

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
SMALLER = {
    r"split-cifar100 photos --tasks 10 --train-per-class 100 --test-per-class 50 --data-root DATA":
        "split-digits photos --train-per-class 40 --test-per-class 6",
    r"learn model photos/2026-07 --task july --adapt": "inspect model",  # which is adapted already
    r"--task may$": "--task may --backbone convnet --image-size 32 --epochs 3 --no-mirror",
}  # fmt: skip


@pytest.fixture
def tutorial(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("pages.tutorial")


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_page_and_its_charts_match_the_recorded_results(tutorial: Any) -> None:
    assert PAGE.read_text(encoding="utf-8") == tutorial.page()
    pictures = importlib.import_module("pictures")
    for picture in tutorial.pictures():
        assert pictures.stored_digest(pictures.FOLDER / picture.name) == picture.digest, picture.name


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, but `recollect` in this process, with the arguments that the shell makes of it."""
    name, _, rest = command.partition(" ")
    line = f"printf '%s\\n' {rest}" if name == "recollect" else command
    done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True)
    return recollect(*done.stdout.splitlines(), cwd=folder) if name == "recollect" else done


def test_the_commands_of_the_page_work_on_digits(tmp_path: Path) -> None:
    """All commands in order; the images of May are deleted when June is learned."""
    outputs: dict[str, str] = {}
    for command in commands():
        small = command
        for pattern, replacement in SMALLER.items():
            small = re.sub(pattern, replacement, small)
        done = shell(small, tmp_path)
        allowed = (0, 1) if command.startswith("recollect check") else (0,)
        assert done.returncode in allowed, f"{small}: {done.stdout}{done.stderr}"
        outputs[command] = " ".join(done.stdout.split())
    printed = " ".join(outputs.values())
    for text in ("460 images of 5 tasks", "Learned july in", "Images kept: none.", "is now at 002-june"):
        assert text in printed
    assert not (tmp_path / "photos/2026-05").exists()
    assert (tmp_path / "model.onnx").stat().st_size > 10_000
