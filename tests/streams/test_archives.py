"""Official archives are found, downloaded and cached."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.streams.archive_files import cifar10_files, cifar100_files, packed, tiny_files, unpacked

from recollect.errors import UserError
from recollect.streams import StreamOptions
from recollect.streams.cache import Decoded, cached
from recollect.streams.cifar import CIFAR10, CIFAR100, load_cifar10, load_cifar100
from recollect.streams.tiny_imagenet import TINY_IMAGENET, load_tiny_imagenet

OPTIONS = StreamOptions()


CASES = [
    (load_cifar10, CIFAR10, cifar10_files, 100, 20),
    (load_cifar100, CIFAR100, cifar100_files, 300, 200),
    (load_tiny_imagenet, TINY_IMAGENET, tiny_files, 12, 3),
]


@pytest.mark.parametrize(("load", "archive", "files", "num_train", "num_test"), CASES)
def test_packed_and_unpacked_archives_give_the_same_images(
    tmp_path: Path, load, archive, files, num_train, num_test
) -> None:
    loose = load(OPTIONS, unpacked(tmp_path / "loose", archive, files()))
    tight = load(OPTIONS, tmp_path / "tight", packed(tmp_path / "tight", archive, files()))
    assert len(loose.train_labels) == num_train
    assert len(loose.test_labels) == num_test
    assert loose.class_names == tight.class_names
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(loose, name), getattr(tight, name))
    assert loose.train_images.dtype == torch.uint8


def test_cifar100_has_colour_planes_and_fine_labels(tmp_path: Path) -> None:
    data = load_cifar100(OPTIONS, unpacked(tmp_path, CIFAR100, cifar100_files()))
    row = np.frombuffer(cifar100_files()["train.bin"], np.uint8).reshape(-1, 3074)[7]
    assert int(data.train_labels[7]) == row[1] == 7
    for colour in range(3):
        for y, x in ((0, 0), (5, 31), (31, 2)):
            assert int(data.train_images[7, colour, y, x]) == row[2 + 1024 * colour + 32 * y + x]


def test_tiny_imagenet_sorts_its_classes_and_reads_grey_images(tmp_path: Path) -> None:
    data = load_tiny_imagenet(OPTIONS, unpacked(tmp_path, TINY_IMAGENET, tiny_files()))
    assert data.class_names == ("n01", "n02", "n03")
    reds = {int(label): int(image[0, 32, 32]) for image, label in zip(data.test_images, data.test_labels, strict=True)}
    assert {label: round(red / 20) for label, red in reds.items()} == {0: 4, 1: 1, 2: 7}
    assert data.train_images.shape == (12, 3, 64, 64)


def test_decoded_arrays_open_memory_mapped_and_only_once(tmp_path: Path, data_folder: Path, monkeypatch) -> None:
    root = unpacked(tmp_path, CIFAR100, cifar100_files())
    first = load_cifar100(OPTIONS, root)
    monkeypatch.setattr("recollect.streams.cifar._rows", lambda *_: pytest.fail("decoded again"))
    assert torch.equal(load_cifar100(OPTIONS, root).train_images, first.train_images)
    arrays = list(data_folder.glob("arrays/cifar100-*/train_images.npy"))
    assert len(arrays) == 1
    mapped = np.load(arrays[0], mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    assert mapped.dtype == np.uint8


def test_a_crash_while_decoding_leaves_no_cache(tmp_path: Path, data_folder: Path, monkeypatch) -> None:
    root = unpacked(tmp_path, CIFAR100, cifar100_files())

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("recollect.streams.cache.os.replace", crash)
        with pytest.raises(KeyboardInterrupt):
            load_cifar100(OPTIONS, root)
    assert not list((data_folder / "arrays").iterdir())
    assert len(load_cifar100(OPTIONS, root).train_labels) == 300


@pytest.mark.parametrize("spoilt", ["about.json", "train_images.npy"])
def test_a_damaged_cache_is_recreated(tmp_path: Path, data_folder: Path, spoilt: str) -> None:
    root = unpacked(tmp_path, CIFAR100, cifar100_files())
    whole = load_cifar100(OPTIONS, root).train_images.clone()
    (found,) = data_folder.glob(f"arrays/cifar100-*/{spoilt}")
    found.write_bytes(found.read_bytes()[:10])
    assert torch.equal(load_cifar100(OPTIONS, root).train_images, whole)
    assert len(list((data_folder / "arrays").iterdir())) == 1


def test_a_cache_written_by_another_process_is_kept(data_folder: Path) -> None:
    arrays = {f"{split}_{what}": np.arange(4) for split in ("train", "test") for what in ("images", "labels")}
    written = []

    def overtaken() -> Decoded:
        cached("digits", "f", lambda: (arrays, ("a",)))
        written.extend(path.stat().st_ino for path in data_folder.glob("arrays/*/about.json"))
        return arrays, ("a",)

    assert cached("digits", "f", overtaken).train_labels.tolist() == [0, 1, 2, 3]
    assert written == [path.stat().st_ino for path in data_folder.glob("arrays/*/about.json")]
    assert len(written) == len(list((data_folder / "arrays").iterdir())) == 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine."""
    root = tmp_path / "www"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root)) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}", root
        web.shutdown()


def test_downloads_try_mirrors_check_hashes_and_start_again_cleanly(server, data_folder: Path, monkeypatch) -> None:
    url, root = server
    good = packed(root / "good", CIFAR100, cifar100_files())
    (root / "cut").mkdir()
    (root / "cut" / good.filename).write_bytes((root / "good" / good.filename).read_bytes()[:500])
    archive = replace(good, urls=(f"{url}/absent/{good.filename}", f"{url}/cut/{good.filename}"))
    with pytest.raises(UserError, match="could not download cifar-100-binary.tar.gz .*RECOLLECT_MIRRORS"):
        load_cifar100(OPTIONS, None, archive)
    assert not list((data_folder / "archives").iterdir())
    monkeypatch.setenv("RECOLLECT_MIRRORS", f"{url}/absent {url}/good/")
    assert len(load_cifar100(OPTIONS, None, archive).train_labels) == 300
    monkeypatch.delenv("RECOLLECT_MIRRORS")
    (root / "good" / good.filename).unlink()
    assert len(load_cifar100(OPTIONS, None, archive).train_labels) == 300  # kept: nothing is fetched again
