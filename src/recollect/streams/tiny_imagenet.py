"""Tiny ImageNet from its official zip: 200 classes, 64 pixels; the official validation set is the test set."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from recollect.errors import UserError
from recollect.pictures import decode_image
from recollect.streams.archive import Archive, Files, open_archive
from recollect.streams.cache import Decoded, cached
from recollect.streams.protocol import Dataset, Size, Source, StreamOptions

SIZE = 64
TINY_IMAGENET = Archive(
    "tiny-imagenet-200.zip",
    "tiny-imagenet-200",
    "90528d7ca1a48142e341f4ef8d21d0de",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "https://cs231n.stanford.edu/tiny-imagenet-200.zip"),
)


def load_tiny_imagenet(options: StreamOptions, data_root: Path | None, archive: Archive = TINY_IMAGENET) -> Dataset:
    """Classes are WordNet ids in sorted order; grey images become RGB."""
    files = open_archive(archive, data_root)
    mean, std = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
    return cached("tinyimagenet", files.fingerprint(), lambda: _decode(files), mean=mean, std=std)


def _decode(files: Files) -> Decoded:
    wnids = sorted(files.read("wnids.txt").decode("ascii", errors="replace").split())
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    members = files.names()
    train = [(name, name.split("/")[1]) for name in members if name.startswith("train/") and name.endswith(".JPEG")]
    lines = files.read("val/val_annotations.txt").decode("ascii", errors="replace").splitlines()
    test = [(f"val/images/{line.split()[0]}", line.split()[1]) for line in lines if line.strip()]
    arrays = {}
    for split, listed in (("train", train), ("test", test)):
        for wnid in sorted({wnid for _, wnid in listed} ^ set(wnids)):
            known = "has no images" if wnid in label_of else "is not in wnids.txt"
            raise UserError(
                f"{files.path}: class {wnid} {known} in the {split} set; the archive is incomplete: fetch it again"
            )
        images = np.empty((len(listed), 3, SIZE, SIZE), np.uint8)
        for row, (name, _) in enumerate(listed):
            picture = decode_image(io.BytesIO(files.read(name)), f"{files.path}, {name}")
            if picture.shape != (3, SIZE, SIZE):
                raise UserError(f"{files.path}, {name}: shape {picture.shape}, expected 3 x 64 x 64; fetch it again")
            images[row] = picture
        arrays[f"{split}_images"] = images
        arrays[f"{split}_labels"] = np.array([label_of[wnid] for _, wnid in listed], np.int64)
    return arrays, tuple(wnids)


STREAMS = {
    "split-tinyimagenet": Source(
        load=load_tiny_imagenet,
        options=StreamOptions(tasks=10),
        about="Tiny ImageNet in 10 tasks of 20 classes, 64 pixels",
        size=Size(200, 500, (3, SIZE, SIZE)),
    ),
}
