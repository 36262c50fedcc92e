"""Decoded datasets, kept as uint8 arrays that open memory-mapped; written aside and renamed, so never half there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from rich.console import Console

from recollect.streams.archive import data_folder
from recollect.streams.protocol import Dataset, content_digest

FORMAT = 1
Arrays = Mapping[str, np.ndarray]
Decoded = tuple[Arrays, tuple[str, ...]]
UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError)
"""What opening a cache raises that is not there or was damaged; the data is then decoded again."""


def cached(name: str, fingerprint: str, decode: Callable[[], Decoded], **known: Any) -> Dataset:
    """The dataset from the cache, decoded into it where the fingerprint is new; `known` are its further fields."""
    folder = data_folder() / "arrays" / f"{name}-{fingerprint}-{FORMAT}"
    try:
        return _open(folder, known)
    except UNREADABLE:
        with Console(stderr=True).status(f"decoding {name}, once"):
            _write(folder, *decode())
    return _open(folder, known)


def dataset_in_memory(arrays: Arrays, class_names: tuple[str, ...]) -> Dataset:
    """The dataset in memory only: a user's own images are not copied to the cache."""
    tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Dataset(class_names, **tensors, digest=_digest(arrays, class_names))


def _open(folder: Path, known: Mapping[str, Any]) -> Dataset:
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    # Copy-on-write mapping: pages stay shared with the file and torch need not be told that they are read-only.
    maps = {path.stem: np.load(path, mmap_mode="c") for path in folder.glob("*.npy")}
    arrays: dict[str, Any] = {name: torch.from_numpy(array) for name, array in maps.items()}
    return Dataset(tuple(about["classes"]), **arrays, digest=about["digest"], **known)


def _write(folder: Path, arrays: Arrays, class_names: tuple[str, ...]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            with (aside / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                _settle(file)
        with (aside / "about.json").open("w", encoding="utf-8") as file:
            json.dump({"classes": class_names, "digest": _digest(arrays, class_names)}, file, ensure_ascii=False)
            _settle(file)
        _rename(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _settle(file: IO[Any]) -> None:
    """Have what was written on the disk before the folder gets its name."""
    file.flush()
    os.fsync(file.fileno())


def _rename(aside: Path, folder: Path) -> None:
    """Another process may have written the same meanwhile, which stays; what is damaged is replaced."""
    try:
        os.replace(aside, folder)
    except OSError:
        if not folder.exists():
            raise
        if not _is_whole(folder):
            damaged = aside.with_name(f"{aside.name}.damaged")
            os.replace(folder, damaged)
            os.replace(aside, folder)
            shutil.rmtree(damaged)


def _is_whole(folder: Path) -> bool:
    try:
        _open(folder, {})
    except UNREADABLE:
        return False
    return True


def _digest(arrays: Arrays, class_names: tuple[str, ...]) -> str:
    return content_digest(class_names, *(arrays[name] for name in sorted(arrays)))
