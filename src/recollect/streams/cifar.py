"""CIFAR-10 and CIFAR-100 from the official binary archives: rows of label bytes and 3072 pixels, red plane first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.errors import UserError
from recollect.streams.archive import Archive, Files, open_archive
from recollect.streams.cache import Decoded, cached
from recollect.streams.protocol import Dataset, Size, Source, StreamOptions

NUM_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """The files of one of the two archives, and how their rows read."""

    name: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    class_names: str
    num_classes: int
    num_labels: int
    """Label bytes before the pixels; the last of them is used."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


CIFAR10 = Archive(
    filename="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
CIFAR10_LAYOUT = Layout(
    name="cifar10",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    class_names="batches.meta.txt",
    num_classes=10,
    num_labels=1,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2615),
)
CIFAR100 = Archive(
    filename="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)
CIFAR100_LAYOUT = Layout(
    name="cifar100",
    train=("train.bin",),
    test=("test.bin",),
    class_names="fine_label_names.txt",
    num_classes=100,
    num_labels=2,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def load_cifar10(options: StreamOptions, data_root: Path | None, archive: Archive = CIFAR10) -> Dataset:
    """Five training files and one test file, one label byte a row."""
    return _load(open_archive(archive, data_root), CIFAR10_LAYOUT)


def load_cifar100(options: StreamOptions, data_root: Path | None, archive: Archive = CIFAR100) -> Dataset:
    """One training and one test file, a coarse and a fine label byte a row; the fine one is used."""
    return _load(open_archive(archive, data_root), CIFAR100_LAYOUT)


def _load(files: Files, layout: Layout) -> Dataset:
    def decode() -> Decoded:
        class_names = tuple(files.read(layout.class_names).decode("utf-8", errors="replace").split())
        if len(class_names) != layout.num_classes:
            raise UserError(
                f"{files.path}, {layout.class_names}: {len(class_names)} class names, expected {layout.num_classes}; "
                "fetch the archive again"
            )
        arrays = {}
        for split, members in (("train", layout.train), ("test", layout.test)):
            rows = np.concatenate([_rows(files, member, layout) for member in members])
            labels = rows[:, layout.num_labels - 1].astype(np.int64)
            counts = np.bincount(labels, minlength=layout.num_classes)
            if counts.min() != counts.max():
                raise UserError(
                    f"{files.path}: classes of the {split} set have {counts.min()} to {counts.max()} images and should "
                    "have equally many; a file is cut short: fetch the archive again"
                )
            arrays[f"{split}_images"] = np.ascontiguousarray(rows[:, layout.num_labels :]).reshape(-1, 3, 32, 32)
            arrays[f"{split}_labels"] = labels
        return arrays, class_names

    return cached(layout.name, files.fingerprint(), decode, mean=layout.mean, std=layout.std)


def _rows(files: Files, member: str, layout: Layout) -> np.ndarray:
    data = np.frombuffer(files.read(member), np.uint8)
    where, width = f"{files.path}, {member}", layout.num_labels + NUM_PIXELS
    if not len(data) or len(data) % width:
        raise UserError(
            f"{where}: {len(data)} bytes do not divide into rows of {width}; the file is truncated: fetch it again"
        )
    rows = data.reshape(-1, width)
    largest = int(rows[:, layout.num_labels - 1].max())
    if largest >= layout.num_classes:
        raise UserError(
            f"{where}: label {largest} with {layout.num_classes} classes; the file is corrupt: fetch it again"
        )
    return rows


STREAMS = {
    "split-cifar10": Source(
        load=load_cifar10, about="CIFAR-10 in 5 tasks of 2 classes, 32 pixels", size=Size(10, 5000, (3, 32, 32))
    ),
    "split-cifar100": Source(
        load=load_cifar100, about="CIFAR-100 in 5 tasks of 20 classes, 32 pixels", size=Size(100, 500, (3, 32, 32))
    ),
}
