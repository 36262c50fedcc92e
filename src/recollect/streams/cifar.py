"""CIFAR-10 and CIFAR-100 from the official binary archives: rows of label bytes and 3072 pixels, red plane first."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recollect.errors import UserError
from recollect.streams.archive import Archive, Files, open_archive
from recollect.streams.cache import Decoded, cached
from recollect.streams.protocol import Dataset, Source, StreamOptions

NUM_PIXELS = 3 * 32 * 32
CIFAR10 = Archive(
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    "c32a1d4ab5d03f1284b67883e8d87530",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
CIFAR100 = Archive(
    "cifar-100-binary.tar.gz",
    "cifar-100-binary",
    "03b5dce01913d631647c71ecec9e9cb8",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)


def load_cifar10(options: StreamOptions, data_root: Path | None, archive: Archive = CIFAR10) -> Dataset:
    """Five training files and one test file, one label byte a row."""
    files = open_archive(archive, data_root)
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    return _load(
        files,
        "cifar10",
        train,
        ["test_batch.bin"],
        "batches.meta.txt",
        1,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2615),
    )


def load_cifar100(options: StreamOptions, data_root: Path | None, archive: Archive = CIFAR100) -> Dataset:
    """One training and one test file, a coarse and a fine label byte a row; the fine one is used."""
    files = open_archive(archive, data_root)
    return _load(
        files,
        "cifar100",
        ["train.bin"],
        ["test.bin"],
        "fine_label_names.txt",
        2,
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
    )


def _load(
    files: Files,
    name: str,
    train: list[str],
    test: list[str],
    names: str,
    num_labels: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    def decode() -> Decoded:
        class_names = tuple(files.read(names).decode("utf-8").split())
        arrays = {}
        for split, members in (("train", train), ("test", test)):
            rows = np.concatenate([_rows(files, member, num_labels, len(class_names)) for member in members])
            arrays[f"{split}_images"] = np.ascontiguousarray(rows[:, num_labels:]).reshape(-1, 3, 32, 32)
            arrays[f"{split}_labels"] = rows[:, num_labels - 1].astype(np.int64)
        return arrays, class_names

    arrays, class_names = cached(name, files.fingerprint(), decode)
    return Dataset(
        class_names,
        arrays["train_images"],
        arrays["train_labels"],
        arrays["test_images"],
        arrays["test_labels"],
        mean,
        std,
    )


def _rows(files: Files, member: str, num_labels: int, num_classes: int) -> np.ndarray:
    data = np.frombuffer(files.read(member), np.uint8)
    where = f"{files.path}, {member}"
    if not len(data) or len(data) % (num_labels + NUM_PIXELS):
        raise UserError(
            f"{where}: {len(data)} bytes do not divide into rows of {num_labels + NUM_PIXELS}; "
            "the file is truncated: delete it and fetch it again"
        )
    rows = data.reshape(-1, num_labels + NUM_PIXELS)
    largest = int(rows[:, num_labels - 1].max())
    if largest >= num_classes:
        raise UserError(f"{where}: label {largest} with {num_classes} classes; the file is corrupt: fetch it again")
    return rows


STREAMS = {
    "split-cifar10": Source(load=load_cifar10, about="CIFAR-10 in 5 tasks of 2 classes, 32 pixels"),
    "split-cifar100": Source(load=load_cifar100, about="CIFAR-100 in 5 tasks of 20 classes, 32 pixels"),
}
