"""Images and labels in every form that users have them."""

from __future__ import annotations

import struct
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset

from recollect import ContinualClassifier
from recollect.deploy.data import read_images, read_labelled, typical_size
from recollect.errors import UserError
from tests.deploy.support import (
    SMALL,
    digits,
    make_classifier,
    random_images,
    train_model,
    write_images,
    write_photos,
)


def test_arrays_pairs_and_loaders_give_the_same_data(tmp_path: Path) -> None:
    x, y = digits("may")
    x = np.kron(x, np.ones((1, 4, 4), np.uint8))[:40]
    y = y[:40]
    pairs = [(Image.fromarray(image), label) for image, label in zip(x, y, strict=True)]
    loader = torch.utils.data.DataLoader(
        [(torch.from_numpy(image)[None] / 255, int(label)) for image, label in zip(x, y, strict=True)], batch_size=7
    )
    digest = read_labelled((x, y), 32).digest
    assert read_labelled(pairs, 32).digest == digest
    assert read_labelled(loader, 32).digest == digest
    for data, message in (
        ((x.astype(float) * 2, y), "pixels are uint8, or floats from 0 to 1"),
        ((x, y[:-1]), "got 40 images and 39 labels"),
        (3, "cannot learn from a int"),
        ((x[:, None, None], y), "an image has the shape"),
        (tmp_path / "nowhere", "nowhere does not exist; give a folder with"),
    ):
        with pytest.raises(UserError, match=message):
            read_labelled(data, 32)
    with pytest.warns(UserWarning, match="fewer than 10 images of 'b'"), pytest.warns(UserWarning, match="favour"):
        make_classifier(epochs=1).learn((x[:32], ["a"] * 30 + ["b"] * 2), task="may")


def test_labelled_images_of_every_kind_are_read_alike(paths: list[Path]) -> None:
    x, names = random_images(), ["cat", "dog"] * 12
    floats = torch.from_numpy(x).permute(0, 3, 1, 2) / 255
    texts = [str(path) for path in paths]
    expected = read_labelled((x, names), 32).digest
    for data in (
        (paths, names),
        (texts, np.array(names)),
        (iter(texts), iter(names)),
        (floats, names),
        (DataLoader(floats, batch_size=5), names),
        zip(x, names, strict=True),
        ((path, name) for path, name in zip(texts, names, strict=True)),
        list(zip(texts, names, strict=True)),
    ):
        assert read_labelled(data, 32).digest == expected
    two = read_labelled((texts[:2], names[:2]), 32)  # not two pairs of a path and its label
    assert two.class_names == ("cat", "dog")
    assert torch.equal(two.images, read_images(texts[:2], 32))
    assert two.digest == read_labelled(list(zip(texts[:2], names, strict=False)), 32).digest


def test_the_typical_size_is_that_of_paths_too(paths: list[Path]) -> None:
    names = ["cat", "dog"] * 12
    for data in ((paths, names), ([str(path) for path in paths], names), list(zip(paths, names, strict=True))):
        assert typical_size(data) == 32
    generator = (path for path in paths)
    assert typical_size((generator, names)) == typical_size(generator) == 0
    assert len(list(generator)) == 24  # none is lost


def test_labels_of_any_type_name_the_same_class() -> None:
    x, plain = random_images(), [0, 1] * 12
    model = ContinualClassifier("convnet", **SMALL).learn((x, torch.tensor(plain)), task="may")
    assert model.classes_.tolist() == ["0", "1"]
    expected = model.score(x, plain)
    for labels in (torch.tensor(plain), np.array(plain, dtype=float), ["0", "1"] * 12):
        assert model.score(x, labels) == expected
    for label in (None, 0.5, float("nan"), [1, 0], ""):
        with pytest.raises(UserError, match="a label is a string or an integer"):
            model.learn((x, [label] * 24), task="june")
    with pytest.raises(UserError, match="got 24 images, 3 labels"):
        model.score(x, plain[:3])
    for one in (x[0], x[0, :, :, :1], x[0, :, :, 0], torch.from_numpy(x[0]).permute(2, 0, 1)):
        with pytest.raises(UserError, match=r"one image, of shape \[.*32, 32.*\]"):
            model.predict(one)
    assert len(model.predict(Image.fromarray(x[0]))) == 1


def test_an_image_is_the_same_from_a_path_and_from_pillow(tmp_path: Path) -> None:
    deep = Image.fromarray((np.arange(32 * 32).reshape(32, 32) * 60).astype(np.uint16))
    clear = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
    for number, picture in enumerate((deep, clear)):
        path = tmp_path / f"{number}.png"
        picture.save(path)
        by_path, in_hand = read_images([path], 32), read_images([Image.open(path)], 32)
        assert torch.equal(by_path, in_hand)
    assert read_images([tmp_path / "0.png"], 32).float().mean() < 160
    assert int(read_images([tmp_path / "1.png"], 32).min()) == 255  # what is transparent is white


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    array = np.zeros((32, 32, 3), np.uint8)
    array[:8] = 255  # white above
    for orientation, side in ((3, np.s_[24:, :]), (6, np.s_[:, 24:]), (8, np.s_[:, :8])):  # where that comes to lie
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.png"
        Image.fromarray(array).save(path, exif=exif)
        pixels = read_images([path], 32)[0, 0].numpy()
        assert pixels[side].min() > 250, orientation
        assert pixels.mean() == pytest.approx(255 / 4)


def test_phone_formats_are_read_and_system_files_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pillow_heif import register_heif_opener

    register_heif_opener()
    root = write_photos(tmp_path / "p")
    picture = Image.fromarray(np.full((40, 40, 3), 200, np.uint8))
    for name in ("x.HEIC", "x.avif", "x.jfif"):
        kind = {".HEIC": "HEIF", ".avif": "AVIF", ".jfif": "JPEG"}[Path(name).suffix]
        picture.save(root / "a" / name, format=kind)
        assert abs(float(read_images([root / "a" / name], 32).float().mean()) - 200) < 3
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
        (root / "a" / name).write_bytes(b"x")
    assert read_labelled(root, 32).count() == {"a": 13, "b": 10}
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UserError, match=r"x.HEIC needs pip install 'recollect-rfe\[heif\]'"):
        read_images([root / "a" / "x.HEIC"], 32)
    with pytest.raises(UserError, match="'p' contains the folder .*p/a; move its images up one level"):
        read_labelled(tmp_path, 32)
    big = Image.new("L", (12_000, 9_000))  # 108 megapixels
    big.save(tmp_path / "big.png")
    assert read_images([tmp_path / "big.png"], 32).shape == (1, 3, 32, 32)


def test_lists_of_pairs_and_grey_images_are_read() -> None:
    x, names = random_images(num=4), ["a", "b", "a", "b"]
    expected = read_labelled((x, names), 32).digest
    assert read_labelled((list(x), names), 32).digest == expected
    assert read_labelled(([Image.fromarray(image) for image in x], names), 32).digest == expected
    assert read_labelled(list(zip(x, names, strict=True)), 32).digest == expected
    two = read_labelled([(x[0], "a"), (x[1], "b")], 32)
    assert two.digest == read_labelled((x[:2], names[:2]), 32).digest
    with pytest.raises(UserError, match="each item is a pair of an image and its label, got 3 parts"):
        read_labelled([(image, "a", 3) for image in x], 32)
    grey = x[:, :, :, 0]
    for num in (1, 2, 3, 4):
        assert len(read_images(grey[:num], 32)) == num


def test_32_bit_grey_images_are_scaled_by_their_range(tmp_path: Path) -> None:
    ramp = np.arange(32 * 32, dtype=np.int32).reshape(32, 32)
    for name, values in (("bytes", ramp // 4), ("deep", ramp // 4 * 257), ("beyond", ramp * 100), ("below", ramp - 1)):
        Image.fromarray(values.astype(np.int32)).save(tmp_path / f"{name}.tif")
    for name in ("bytes", "deep"):
        images = read_images([tmp_path / f"{name}.tif"], 32)
        assert np.array_equal(images[0, 0], ramp // 4)
    for name, span in (("beyond", "0 to 102300"), ("below", "-1 to 1022")):
        with pytest.raises(UserError, match=rf"{name}.tif is not a readable image \(pixels from {span}"):
            read_images([tmp_path / f"{name}.tif"], 32)


def test_class_name_unknown_is_reserved() -> None:
    with pytest.raises(UserError, match="the class name 'unknown' is reserved for `predict --min-probability`"):
        ContinualClassifier("convnet", **SMALL).learn((random_images(), ["cat", "unknown"] * 12), task="may")


def test_unicode_spellings_of_a_class_name_are_equal() -> None:
    data = read_labelled((random_images(num=4), ["\u00e9", "e\u0301", "\u00e9", "a"]), 32)
    assert data.class_names == ("a", "\u00e9")


def test_all_unreadable_images_are_listed_with_a_reason(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "p")
    (root / "a" / "empty.png").write_bytes(b"")
    (root / "a" / "text.jpg").write_text("hello")
    content = (root / "b" / "0.png").read_bytes()
    (root / "b" / "truncated.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError) as caught:
        read_labelled(root, 32, strict=True)
    lines = str(caught.value).splitlines()
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == [
        "an empty file", "not a format that recollect reads", "cut short",
    ]  # fmt: skip
    for number in range(30):
        (root / "a" / f"more{number}.png").write_bytes(b"")
    with pytest.raises(UserError, match="and 13 more"):
        read_labelled(root, 32, strict=True)


def test_very_many_images_are_put_into_a_file_that_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, temporary = tmp_path / "photos", tmp_path / "temporary"
    temporary.mkdir()
    write_images(folder, random_images(num=6), ["cat", "dog"] * 3)
    (folder / "cat" / "damaged.png").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="skipped 1 image"):
        expected = read_labelled(folder, 32)
    monkeypatch.setattr("recollect.deploy.image_files.MAX_IN_MEMORY", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.warns(UserWarning, match="skipped 1 image"):
        found = read_labelled(folder, 32)
    assert torch.equal(found.images, expected.images)
    assert len(found.images) == 6
    assert list(temporary.iterdir()) == []


def test_a_large_jpeg_is_decoded_small_and_nearly_the_same(tmp_path: Path) -> None:
    across, down = np.meshgrid(np.linspace(0, 255, 1200), np.linspace(0, 255, 900))
    photo = np.stack([across, np.full_like(across, 90), down], 2).astype(np.uint8)
    Image.fromarray(photo).save(tmp_path / "x.jpg", quality=95)
    Image.fromarray(photo).save(tmp_path / "x.png")
    small, exact = (read_images([tmp_path / name], 64).int() for name in ("x.jpg", "x.png"))
    assert (small - exact).abs().max() <= 4
    with Image.open(tmp_path / "x.jpg") as opened:
        opened.draft("RGB", (128, 128))
        assert opened.size == (300, 225)


def test_any_error_of_pillow_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(picture: Image.Image) -> Image.Image:
        raise struct.error("unpack requires a buffer of 12 bytes")

    Image.fromarray(random_images()[0]).save(tmp_path / "x.jpg")
    monkeypatch.setattr(Image.Image, "getexif", broken)
    with pytest.raises(UserError, match=r"x.jpg is not a readable image \(error\); replace or remove it"):
        read_images([tmp_path / "x.jpg"], 32)


def test_unreadable_pillow_images_and_arrays_are_refused() -> None:
    with pytest.raises(UserError, match="an image cannot be read .floating-point pixels.; replace or remove it"):
        train_model("may").predict([Image.fromarray(np.zeros((32, 32), np.float32))])
    with pytest.raises(UserError, match="^an image has the shape"):
        train_model("may").predict([np.zeros((32, 32, 7), np.uint8)])


class Photos(Dataset[Any]):
    """Large images, of which it counts those that are still held."""

    def __init__(self, classes: list[str] | None = None) -> None:
        if classes:
            self.classes = classes
        self.alive: list[weakref.ref[Any]] = []
        self.most = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = np.full((300, 300, 3), index, np.uint8)
        self.alive.append(weakref.ref(image))
        self.most = max(self.most, sum(reference() is not None for reference in self.alive))
        return image, index % 2


def test_a_dataset_is_read_one_image_at_a_time() -> None:
    data = Photos()
    assert read_labelled(data, 32).images.shape == (20, 3, 32, 32)
    assert data.most <= 3


def test_the_classes_of_a_dataset_name_its_labels() -> None:
    data = Photos(["cat", "dog"])
    for given in (data, Subset(data, range(6)), DataLoader(data, batch_size=4)):
        assert read_labelled(given, 32).class_names == ("cat", "dog")
    assert read_labelled(Photos(), 32).class_names == ("0", "1")
    with pytest.raises(UserError, match="the label 1 is out of range: the dataset has 1 classes"):
        read_labelled(Photos(["cat"]), 32)
