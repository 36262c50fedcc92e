"""A stream written as folders holds its images, each in its task's and class's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.support import recollect

from recollect.errors import UserError
from recollect.pictures import class_pictures
from recollect.streams import stream_from_tensors
from recollect.streams.export import count_images, export_stream


def small(names: tuple[str, ...] = ("red fox", "owl", "hen", "cow"), channels: int = 3):  # type: ignore[no-untyped-def]
    """Four classes in two tasks; every image is one value, 10 times its class plus a number."""

    def images(num: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(4 * num) % 4
        values = (labels * 50 + torch.arange(4 * num) // 4).to(torch.uint8)
        return values[:, None, None, None].expand(-1, channels, 6, 5).contiguous(), labels

    return stream_from_tensors(*images(7), *images(3), tasks=2, class_names=names, validation=0.25)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_is_exported_unchanged_to_its_folder(tmp_path: Path, channels: int) -> None:
    stream = small(channels=channels)
    out = tmp_path / "photos"
    counted = []
    num = export_stream(stream, out, advance=lambda: counted.append(1))
    assert num == len(counted) == count_images(stream) == 4 * (7 + 3)
    for place, per_class in (("train", 7), ("test", 3)):
        for task, names in (("task-1", ("red-fox", "owl")), ("task-2", ("hen", "cow"))):
            found = class_pictures(out / place / task)
            assert set(found) == set(names)
            for name, paths in found.items():
                first = 50 * ("red-fox", "owl", "hen", "cow").index(name)
                arrays = [np.asarray(Image.open(path)) for path in paths]
                assert {array.shape for array in arrays} == {(6, 5, 3) if channels == 3 else (6, 5)}
                assert sorted(int(array.flat[0]) for array in arrays) == list(range(first, first + per_class))


def test_the_number_of_test_images_can_be_limited(tmp_path: Path) -> None:
    stream = small()
    assert export_stream(stream, tmp_path / "x", test_per_class=2) == count_images(stream, 2) == 4 * (7 + 2)
    assert len(list((tmp_path / "x/test/task-2/cow").iterdir())) == 2


def test_nothing_is_overwritten_or_left_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match="exists already"):
        export_stream(small(), tmp_path / "x")
    with pytest.raises(UserError, match="the name 'a/b' cannot be a folder's"):
        export_stream(small(("a/b", "c", "d", "e")), tmp_path / "y")

    def full(self: Image.Image, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(UserError, match="cannot be written .*No space left"):
        export_stream(small(), tmp_path / "z")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt])
def test_an_interrupted_export_leaves_no_folder(tmp_path: Path, error: type[BaseException]) -> None:
    num_calls = 0

    def interrupt() -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise error("stop")

    with pytest.raises(error, match="stop"):
        export_stream(small(), tmp_path / "x", advance=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_bundled_digits(tmp_path: Path) -> None:
    words = ["stream", "export", "split-digits", str(tmp_path / "x"), "--train-per-class", "5", "--test-per-class", "2"]
    done = recollect(*words)
    assert done.returncode == 0, done.stderr
    assert "70 images of 5 tasks" in " ".join(done.stdout.split())
    assert {path.name for path in (tmp_path / "x/train/task-3").iterdir()} == {"4", "5"}
    assert recollect(*words).returncode == 2


def test_an_unrelated_folder_with_a_similar_name_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.unfinished").mkdir()
    (tmp_path / "x.unfinished" / "thesis.txt").write_text("x")
    export_stream(small(), tmp_path / "x")
    assert (tmp_path / "x.unfinished" / "thesis.txt").read_text() == "x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.unfinished"]
