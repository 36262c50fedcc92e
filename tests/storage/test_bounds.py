"""Files and options that would take all memory, or start a program, are refused before they can."""

from __future__ import annotations

import io
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recollect import ContinualClassifier, resolve, run, stream_from_tensors
from recollect.engine import checkpoint
from recollect.errors import UserError
from recollect.pictures import decode_image
from recollect.storage.tensors import save_tensors

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 20 20
%%EndComments
0 0 20 20 rectfill
%%EOF
"""


def test_a_picture_never_starts_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow runs whatever is called gs for an EPS file, also where it is named cat.jpg."""
    started = tmp_path / "started"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    picture = tmp_path / "cat.jpg"
    picture.write_bytes(EPS)
    with pytest.raises(UserError, match=r"cat.jpg is not a readable image \(not a format that recollect reads\)"):
        decode_image(io.BytesIO(picture.read_bytes()), str(picture), 32)
    with (
        pytest.warns(UserWarning, match="not a readable image"),
        pytest.raises(UserError, match="a single image"),
    ):
        ContinualClassifier(backbone="convnet", image_size=16, device="cpu").learn(
            _folder_with(picture, tmp_path), "may"
        )
    assert not started.exists()


def _folder_with(picture: Path, tmp_path: Path) -> Path:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    shutil.copy(picture, tmp_path / "photos" / "cat")
    Image.new("RGB", (20, 20)).save(tmp_path / "photos" / "cat" / "one.png")
    return tmp_path / "photos"


def test_common_formats_are_still_read() -> None:
    for name in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"):
        file = io.BytesIO()
        Image.new("RGB", (24, 20), (200, 30, 30)).save(file, name)
        image = decode_image(file, f"a.{name.lower()}")
        assert image.shape == (3, 20, 24)
        assert np.abs(np.asarray(image, float).mean(axis=(1, 2)) - (200, 30, 30)).max() < 4, name


def test_a_small_file_of_very_many_pixels_is_refused(tmp_path: Path) -> None:
    code = "import sys; from recollect.pictures import decode_image; decode_image(open(sys.argv[1], 'rb'), 'it', 32)"
    picture = tmp_path / "bomb.png"
    Image.new("1", (13_300, 13_300)).save(picture)
    assert picture.stat().st_size < 100_000
    limit = 1 << 30  # of its data, above which Python raises MemoryError

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    ended = subprocess.run([sys.executable, "-c", code, str(picture)], preexec_fn=bound, capture_output=True, text=True)
    assert "13300 x 13300 pixels in" in ended.stderr
    assert "MemoryError" not in ended.stderr


def test_a_large_photo_is_read_with_few_copies(tmp_path: Path) -> None:
    picture = tmp_path / "large.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (4000, 6000, 3), np.uint8)).save(picture, quality=30)
    code = """
import resource, sys
from recollect.pictures import decode_image
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decode_image(open(sys.argv[1], "rb"), "it", 32)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    ended = subprocess.run([sys.executable, "-c", code, str(picture)], capture_output=True, text=True, check=True)
    assert int(ended.stdout) * 1024 < 6 * 4000 * 6000  # twice the picture


def test_a_sparse_checkpoint_is_refused_without_reading_it_into_memory(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint.save(folder, "task-001", {"a": torch.zeros(3)}, {}, "run")
    with (folder / "task-001" / "state.safetensors").open("r+b") as file:
        file.truncate(400 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="does not match its hash"):
        checkpoint.load_latest(folder, "run")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_tensors_are_loaded_with_one_copy_in_memory(tmp_path: Path) -> None:
    """Pages of the mapped file do not count: the system can drop them."""
    code = """
import sys, threading
from pathlib import Path
import torch
from recollect.storage.tensors import load_tensors

def anonymous_bytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10

before, peaks, ended = anonymous_bytes(), [], threading.Event()
def watch():
    while not ended.wait(0.001):
        peaks.append(anonymous_bytes())
watcher = threading.Thread(target=watch)
watcher.start()
tensors = load_tensors(Path(sys.argv[1]), sys.argv[2])
ended.set()
watcher.join()
print(max([*peaks, anonymous_bytes()]) - before)
"""
    size = 100 << 20
    path = tmp_path / "state.safetensors"
    sha256 = save_tensors(path, {"a": torch.zeros(size, dtype=torch.uint8), "b": torch.ones(3)})
    ended = subprocess.run([sys.executable, "-c", code, str(path), sha256], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 1.5 * size


def test_a_backbone_too_large_for_any_machine_is_refused(tmp_path: Path) -> None:
    for backbone, option in (
        ("resnet18", "backbone.width"),
        ("convnet", "backbone.width"),
        ("vit-small", "backbone.dim"),
    ):
        settings = {"backbone": backbone, option: 100_000_000, "epochs": 1}
        with pytest.raises(UserError, match="lies between 1 and"):
            run(resolve("split-digits", "finetune", 0, settings, precision="fp32"), tmp_path / backbone)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 10**9, 1]), "a label is 1000000000, and there can be 1000000 classes"),
        (torch.tensor([0.0, 1.0, float("nan"), 1.0]), "labels are whole numbers counted from 0"),
        (["a", "b", "a", "b"], "labels are whole numbers counted from 0"),
        (torch.tensor([[0], [1], [0], [1]]), "labels are whole numbers counted from 0, one per image"),
        (None, "labels are whole numbers counted from 0"),
    ],
)
def test_invalid_labels_are_refused(labels: object, message: str) -> None:
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(UserError, match=message):
        stream_from_tensors(images, labels, images, torch.tensor([0, 1, 0, 1]), tasks=1)  # type: ignore[arg-type]


def test_a_list_of_whole_numbers_is_a_list_of_labels() -> None:
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    stream = stream_from_tensors(images, [0, 1, 0, 1], images, [0, 1, 0, 1], tasks=1)  # type: ignore[arg-type]
    assert stream.tasks[0].info.class_names == ("0", "1")
