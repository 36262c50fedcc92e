"""Official archives of small size, made here: found, downloaded, cached, and refused where they are spoilt."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.errors import UserError
from recollect.streams import StreamOptions
from recollect.streams.archive import Archive, open_archive
from recollect.streams.cache import Decoded, cached
from recollect.streams.cifar import CIFAR10, CIFAR100, load_cifar10, load_cifar100
from recollect.streams.tiny_imagenet import TINY_IMAGENET, load_tiny_imagenet

OPTIONS = StreamOptions()


def cifar_rows(num: int, num_classes: int, num_labels: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    labels = np.stack([np.arange(num) % num_classes] * num_labels, 1).astype(np.uint8)
    if num_labels == 2:
        labels[:, 0] //= 5
    return np.concatenate([labels, rng.integers(0, 256, (num, 3072), np.uint8)], 1).tobytes()


def cifar100_files() -> dict[str, bytes]:
    names = "\n".join(f"class{i}" for i in range(100)).encode() + b"\n"
    return {
        "train.bin": cifar_rows(300, 100, 2, 0), "test.bin": cifar_rows(200, 100, 2, 1), "fine_label_names.txt": names,
    }  # fmt: skip


def cifar10_files() -> dict[str, bytes]:
    files = {f"data_batch_{i}.bin": cifar_rows(20, 10, 1, i) for i in range(1, 6)}
    return files | {"test_batch.bin": cifar_rows(20, 10, 1, 9), "batches.meta.txt": "\n".join("abcdefghij").encode()}


def jpeg(value: int, grey: bool = False) -> bytes:
    out = io.BytesIO()
    Image.new("L" if grey else "RGB", (64, 64), value if grey else (value, 0, 0)).save(out, "JPEG")
    return out.getvalue()


def tiny_files() -> dict[str, bytes]:
    wnids = ["n02", "n01", "n03"]
    files = {"wnids.txt": "\n".join(wnids).encode(), "words.txt": b"n01\tfish\n"}
    lines = []
    for c, wnid in enumerate(wnids):
        for i in range(4):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(60 * c + 20, grey=i == 0)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"n01_0.JPEG\t0\t0\t1\t1\n"
        files[f"val/images/val_{c}.JPEG"] = jpeg(60 * c + 20)
        lines.append(f"val_{c}.JPEG\t{wnid}\t0\t0\t1\t1")
    return files | {"val/val_annotations.txt": "\n".join(lines).encode() + b"\n"}


def unpacked(root: Path, archive: Archive, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / archive.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def packed(root: Path, archive: Archive, files: dict[str, bytes]) -> Archive:
    """Write the archive file and return its description with the right hash."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / archive.filename
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, data in files.items():
                zipped.writestr(f"{archive.folder}/{name}", data)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, data in files.items():
                member = tarfile.TarInfo(f"{archive.folder}/{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return replace(archive, md5=hashlib.md5(path.read_bytes()).hexdigest())


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


def spoil(files: dict[str, bytes], name: str, data: bytes | None) -> dict[str, bytes]:
    return {k: v for k, v in files.items() if k != name} | ({} if data is None else {name: data})


@pytest.mark.parametrize(
    ("load", "archive", "files", "message"),
    [
        (
            load_cifar100,
            CIFAR100,
            lambda: spoil(cifar100_files(), "train.bin", b"\0" * 3000),
            "train.bin: 3000 bytes do not divide",
        ),
        (load_cifar100, CIFAR100, lambda: spoil(cifar100_files(), "test.bin", None), "cannot read test.bin"),
        (
            load_cifar100,
            CIFAR100,
            lambda: spoil(cifar100_files(), "test.bin", b"\xff" * 3074),
            "label 255 with 100 classes",
        ),
        (
            load_cifar100,
            CIFAR100,
            lambda: spoil(cifar100_files(), "train.bin", cifar100_files()["train.bin"][: 3074 * 250]),
            "classes of the train set have 2 to 3 images",
        ),
        (
            load_cifar100,
            CIFAR100,
            lambda: spoil(cifar100_files(), "fine_label_names.txt", b"\xff\xfe a b"),
            "3 class names, expected 100",
        ),
        (
            load_tiny_imagenet,
            TINY_IMAGENET,
            lambda: spoil(tiny_files(), "wnids.txt", b"n01\nn02\nn03\nn04"),
            "class n04 has no images",
        ),
        (
            load_tiny_imagenet,
            TINY_IMAGENET,
            lambda: spoil(tiny_files(), "wnids.txt", b"n01\nn02"),
            "class n03 is not in wnids.txt",
        ),
        (
            load_tiny_imagenet,
            TINY_IMAGENET,
            lambda: spoil(tiny_files(), "val/images/val_1.JPEG", b"text"),
            "val_1.JPEG is not a readable image",
        ),
    ],
)
def test_an_invalid_archive_member_is_named(tmp_path: Path, load, archive, files, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(OPTIONS, unpacked(tmp_path, archive, files()))


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.new("RGB", (32, 64)).save(out, "JPEG")
    files = spoil(tiny_files(), "val/images/val_1.JPEG", out.getvalue())
    with pytest.raises(UserError, match=r"val_1.JPEG: shape \(3, 64, 32\)"):
        load_tiny_imagenet(OPTIONS, unpacked(tmp_path, TINY_IMAGENET, files))


def test_a_corrupt_or_missing_archive_is_named(tmp_path: Path) -> None:
    archive = packed(tmp_path, CIFAR100, cifar100_files())
    path = tmp_path / archive.filename
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cifar-100-binary.tar.gz is not the published archive .* delete it"):
        open_archive(archive, tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="found neither cifar-100-binary/ nor cifar-100-binary.tar.gz"):
        open_archive(archive, tmp_path)


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


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_member_that_would_unpack_to_too_much_is_refused(kind: str, tmp_path: Path, monkeypatch) -> None:
    from recollect.streams import archive

    path = tmp_path / f"bomb.{kind}"
    if kind == "tar":
        with tarfile.open(path, "w:gz") as packed:
            (tmp_path / "zeros").write_bytes(bytes(200_000))
            packed.add(tmp_path / "zeros", "data/zeros")
        files: archive.Files = archive.Tar(path, "data", "")
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("data/zeros", bytes(200_000))
        files = archive.Zip(path, "data", "")
    assert path.stat().st_size < 2000
    assert len(files.read("zeros")) == 200_000
    monkeypatch.setattr(archive, "MAX_BYTES", 100_000)
    with pytest.raises(UserError, match="it would unpack to 200000 bytes, more than 100000"):
        files.read("zeros")


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch) -> None:
    from recollect.streams import images

    buffer = io.BytesIO()
    Image.new("RGB", (400, 300)).save(buffer, "PNG")
    assert images.decode_image(io.BytesIO(buffer.getvalue()), "it").shape == (3, 300, 400)
    monkeypatch.setattr(images, "MAX_PIXELS", 100_000)
    with pytest.raises(UserError, match="it is not a readable image .400 x 300 pixels in [0-9]+ bytes, too many"):
        images.decode_image(io.BytesIO(buffer.getvalue()), "it")
