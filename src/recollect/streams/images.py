"""A stream from any folder with one sub-folder of images per class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from recollect.errors import UserError
from recollect.pictures import class_pictures, is_litter, list_pictures, read_file
from recollect.rng import Key
from recollect.streams.cache import Decoded, dataset_in_memory
from recollect.streams.protocol import Dataset, Protocol, Source, StreamOptions

TEST_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class ImageOptions(StreamOptions):
    image_size: int = 64
    """Side length in pixels; the central square of each image is resized to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 16 <= self.image_size <= 1024:
            raise UserError(f"image_size lies between 16 and 1024 pixels, got {self.image_size}")


def load_folder(options: StreamOptions, data_root: Path | None) -> Dataset:
    """`root/class/*.png`, or `root/train/class` and `root/test/class`; without a test folder a fifth is held out.

    A user's own images are decoded for every run and copied nowhere.
    """
    if data_root is None:
        raise UserError("the stream 'images' reads a folder with one sub-folder per class; give it with --data-root")
    if not data_root.is_dir():
        raise UserError(f"--data-root {data_root} is not a folder")
    if not isinstance(options, ImageOptions):
        raise UserError(f"the options of the stream 'images' are ImageOptions, got {type(options).__name__}")
    with Console(stderr=True).status(f"reading the images of {data_root}"):
        return dataset_in_memory(*_decode(data_root, options.image_size))


def _decode(root: Path, size: int) -> Decoded:
    separate = (root / "train").is_dir() and (root / "test").is_dir()
    if not separate and (root / "train").is_dir() and not _is_class(root / "train"):
        raise UserError(f"{root} has a folder train/ but no test/; add one, or give {root / 'train'} as --data-root")
    train_root = root / "train" if separate else root
    folders = class_pictures(train_root)
    names = tuple(folders)
    pictures: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    for label, name in enumerate(names):
        paths = folders[name]
        if separate:
            pictures["train"] += [(p, label) for p in paths]
            pictures["test"] += [(p, label) for p in list_pictures(root / "test" / name)]
        else:
            held_out = min(max(1, round(TEST_SHARE * len(paths))), len(paths) - 1)
            order = np.random.default_rng((Key(0) / "test images" / name).number()).permutation(len(paths))
            pictures["test"] += [(paths[i], label) for i in sorted(order[:held_out])]
            pictures["train"] += [(paths[i], label) for i in sorted(order[held_out:])]
    arrays = {}
    for split, listed in pictures.items():
        decoded = [read_file(p, size) for p, _ in listed]
        arrays[f"{split}_images"] = np.stack(decoded) if decoded else np.zeros((0, 3, size, size), np.uint8)
        arrays[f"{split}_labels"] = np.array([label for _, label in listed], np.int64)
    return arrays, names


def _is_class(folder: Path) -> bool:
    return not any(path.is_dir() and not is_litter(path) for path in folder.iterdir())


STREAMS = {
    "images": Source(
        load=load_folder,
        options=ImageOptions(tasks=2),
        protocol=Protocol(training={"epochs": 20}),
        about="any folder with one sub-folder of images per class, given by --data-root; the central squares, resized",
    ),
}
