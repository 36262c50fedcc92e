"""Archives that are corrupt, incomplete or dangerous are refused, and the message names what is wrong."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image
from tests.streams.archive_files import cifar100_files, packed, tiny_files, unpacked

from recollect.errors import UserError
from recollect.streams import StreamOptions
from recollect.streams.archive import open_archive
from recollect.streams.cifar import CIFAR100, load_cifar100
from recollect.streams.tiny_imagenet import TINY_IMAGENET, load_tiny_imagenet

OPTIONS = StreamOptions()


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
    from recollect.pictures import decoding

    buffer = io.BytesIO()
    Image.new("RGB", (400, 300)).save(buffer, "PNG")
    assert decoding.decode_image(io.BytesIO(buffer.getvalue()), "it").shape == (3, 300, 400)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 100_000)
    with pytest.raises(UserError, match="it is not a readable image .400 x 300 pixels in [0-9]+ bytes, too many"):
        decoding.decode_image(io.BytesIO(buffer.getvalue()), "it")
