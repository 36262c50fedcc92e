"""`recollect audit` and `recollect purge`: what they print, and their exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from recollect.audit import Searcher
from tests.audit.support import PIECES, copied, newest, rewrite
from tests.support import recollect


def test_a_copy_outside_the_declared_samples_is_reported(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """Hidden in a folder that may hold samples: as bytes of another tensor, and in a slot that should be free."""
    images = tmp_path / "images"
    images.mkdir()
    held = load_file(newest(folders("er")))["learner.memory.images"]
    Image.fromarray(held[0].permute(1, 2, 0).numpy()).save(images / "held.png")
    command = ["audit", folders("er"), "--expect", "reservoir", "--against", images]
    assert recollect(*command).returncode == 0
    folder = copied(folders("er"), tmp_path / "bytes")
    rewrite(newest(folder), lambda tensors: tensors.update(extra=held[0].flatten().view(torch.float32)))
    done = recollect("audit", folder, *command[2:])
    assert done.returncode == 1
    assert "extra (its bytes)" in done.stdout
    folder = copied(folders("er"), tmp_path / "free")

    def free(tensors: dict[str, Tensor]) -> None:
        tensors["learner.memory._extra_state"][0] -= 11

    rewrite(newest(folder), free)
    shown = list(Searcher(held).search_folder(folder))
    assert {f.tensor for f in shown} == {"learner.memory.images", "learner.memory.images (free slots)"}


def test_audit_exits_with_code_1_for_unexpected_samples(folders: Callable[[str], Path], tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for index in (5, 17):  # both with enough contrast to be looked for
        Image.fromarray(PIECES[index].permute(1, 2, 0).numpy()).save(images / f"{index}.png")
    done = recollect("audit", folders("rfe"), "--expect", "none", "--against", images)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Training samples: none" in done.stdout
    assert "Of 2 images searched for, 0 were found" in done.stdout
    assert "does not prove that weights reveal nothing" in done.stdout
    done = recollect("audit", folders("er"), "--expect", "none", "--json")
    assert done.returncode == 1
    held = json.loads(done.stdout)
    assert held["samples"][0]["samples"] == 12
    assert held["problems"]
    assert recollect("audit", folders("er"), "--expect", "reservoir").returncode == 0
    folder = copied(folders("er"), tmp_path / "run")
    done = recollect("purge", folder, "--task", 2)
    assert "samples of task 2 removed; the audit finds none left" in done.stdout
    assert recollect("audit", folder, "--against", tmp_path / "nothing").returncode == 2


def test_images_are_found_in_picture_files(folders: Callable[[str], Path], tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(30):
        kind = "jpg" if number % 3 else "png"
        Image.fromarray(PIECES[number].permute(1, 2, 0).numpy()).save(images / f"{number}.{kind}")
    folder = copied(folders("finetune"), tmp_path / "run")
    shutil.copytree(images, folder / "checkpoint" / "photos")
    done = recollect("audit", folder, "--against", images, "--expect", "none")
    assert done.returncode == 1
    assert "Of 30 images searched for, 30 were found." in done.stdout
    assert "Unrecognised: 10 more files; --json lists all" in done.stdout


def test_a_folder_without_a_run_or_model_is_refused(tmp_path: Path) -> None:
    done = recollect("audit", tmp_path, "--expect", "none")
    assert (done.returncode, "holds no run and no model" in done.stderr) == (2, True)
    (tmp_path / "model.json").write_text("garbage")
    assert recollect("audit", tmp_path, "--expect", "none").returncode == 2
