"""Image files of folders and lists: what is skipped, what is refused, and who decodes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from recollect.deploy import image_files
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.pictures import read_image
from recollect.errors import UserError
from tests.deploy.support import write_photos


def test_folders_without_images_are_skipped_and_others_refused(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "p")
    expected = read_labelled(root, 32)
    (root / "a" / "notes" / "old").mkdir(parents=True)
    (root / "a" / "notes" / "one.txt").write_text("hello")
    with pytest.warns(UserWarning, match="skipped 1 folder without images: notes"):
        assert read_labelled(root, 32).digest == expected.digest
    with pytest.raises(UserError, match=r"'a' contains the folder .*notes; move its images up"):
        read_labelled(root, 32, strict=True)
    (root / "a" / "0.png").rename(root / "a" / "notes" / "old" / "0.png")  # it would be lost
    with pytest.raises(UserError, match=r"'a' contains the folder .*notes; move its images up"):
        read_labelled(root, 32)
    with pytest.raises(UserError, match=r"'p' contains the folder .*a; move its images up"):  # the folder above
        read_labelled(tmp_path, 32)
    (tmp_path / "q" / "empty").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no sub-folder of .*q has images; put the images of each class in a folder"):
        read_labelled(tmp_path / "q", 32)
    with pytest.raises(UserError, match=r"the class folder .*empty has no images; add some, or remove it"):
        read_labelled(tmp_path / "q", 32, strict=True)
    other = write_photos(tmp_path / "r")
    (other / "__MACOSX" / "a").mkdir(parents=True)
    (other / "__MACOSX" / "a" / "._0.png").write_bytes(b"x")
    (other / "misc").mkdir()
    (other / "misc" / "list.csv").write_text("a,b")
    with pytest.warns(UserWarning, match="skipped 1 folder without images: misc"):
        assert read_labelled(other, 32).count() == {"a": 10, "b": 10}


def test_files_that_are_no_images_or_damaged_are_skipped_and_named(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "p")
    expected = read_labelled(root, 32)
    (root / "a" / "damaged.png").write_bytes(b"")
    (root / "a" / "notes.txt").write_text("hello")
    (root / "stray.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match="skipped") as caught:
        labelled = read_labelled(root, 32)
    assert labelled.digest == expected.digest
    texts = [str(warning.message) for warning in caught]
    assert texts[:2] == ["skipped 1 image outside the class folders: stray.jpg", "skipped 1 non-image file: notes.txt"]
    assert "skipped 1 image: " in texts[2]
    assert "damaged.png is not a readable image (an empty file)" in texts[2]
    for path in (root / "b").iterdir():
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match=r"skipped|no image of 'b' can be read, so that nothing is learned of it"):
        assert read_labelled(root, 32).count() == {"a": 10}
    with pytest.raises(UserError, match=r"stray.jpg is next to the class folders"):
        read_labelled(root, 32, strict=True)


@pytest.mark.parametrize("kind", ["paths", "folder"])
def test_files_are_decoded_by_as_many_threads_as_torch_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    root, names = write_photos(tmp_path / "p"), set[str]()
    paths = sorted(root.rglob("*.png"))

    def read(image: Path, size: int) -> torch.Tensor:
        time.sleep(0.01)
        names.add(threading.current_thread().name)
        return read_image(image, size)

    monkeypatch.setattr(image_files, "read_image", read)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    images = read_images(paths, 32) if kind == "paths" else read_labelled(root, 32).images
    assert len(names) == 3
    assert images.equal(torch.stack([read_image(path, 32) for path in paths]))


def test_a_generator_may_reuse_the_array_that_it_yields() -> None:
    def frames() -> Iterator[np.ndarray]:
        frame = np.zeros((32, 32, 3), np.uint8)
        for value in range(5):
            frame[:] = 10 * value
            yield frame

    assert read_images(frames(), 32)[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40]
