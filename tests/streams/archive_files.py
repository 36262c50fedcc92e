"""Official archives of small size, made here."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from recollect.streams.archive import Archive


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
