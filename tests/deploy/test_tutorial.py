"""The tutorial is what its raw files give, and its commands work as they stand: here on the bundled digits."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
SMALLER = {
    r"split-cifar100 photos --tasks 10 --train-per-class 100 --test-per-class 50 --data-root DATA":
        "split-digits photos --train-per-class 40 --test-per-class 6",
    r"--backbone efficientnet-lite0 --image-size 64": "--backbone convnet --image-size 32 --epochs 3 --no-mirror",
}  # fmt: skip


@pytest.fixture
def tutorial(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("tutorial")


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_page_and_its_charts_are_what_was_recorded(tutorial: Any) -> None:
    assert PAGE.read_text(encoding="utf-8") == tutorial.page()
    pictures = importlib.import_module("pictures")
    for picture in tutorial.pictures():
        assert pictures.stored_digest(pictures.FOLDER / picture.name) == picture.digest, picture.name


def test_its_commands_work_on_digits(tmp_path: Path) -> None:
    """Every command in its order, in a shell; the images of May are gone when June is learned."""
    done: dict[str, str] = {}
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in commands():
        small = command
        for pattern, words in SMALLER.items():
            small = re.sub(pattern, words, small)
        found = subprocess.run(small, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        allowed = (0, 1) if "--max-forgetting" in command else (0,)
        assert found.returncode in allowed, f"{small}: {found.stdout}{found.stderr}"
        done[command] = " ".join(found.stdout.split())
    whole = " ".join(done.values())
    assert "460 images of 5 tasks" in whole
    assert "july is learned" in whole
    assert "Images kept: none." in whole
    assert "is at 002-june again" in whole
    assert not (tmp_path / "photos/2026-05").exists()
    assert (tmp_path / "model.onnx").stat().st_size > 10_000
