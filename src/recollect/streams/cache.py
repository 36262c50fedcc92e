"""Decoded datasets, kept as uint8 arrays that open memory-mapped; written aside and renamed, so never half there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recollect.streams.archive import data_folder

Arrays = Mapping[str, np.ndarray]
Decoded = tuple[Arrays, tuple[str, ...]]


def cached(name: str, fingerprint: str, decode: Callable[[], Decoded]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Arrays and class names from the cache, decoded into it first where the fingerprint is new."""
    folder = data_folder() / "arrays" / f"{name}-{fingerprint}"
    if not (folder / "classes.json").exists():
        _write(folder, *decode())
    names = tuple(json.loads((folder / "classes.json").read_text(encoding="utf-8")))
    # Copy-on-write mapping: pages stay shared with the file and torch need not be told that they are read-only.
    return {path.stem: torch.from_numpy(np.load(path, mmap_mode="c")) for path in folder.glob("*.npy")}, names


def _write(folder: Path, arrays: Arrays, class_names: tuple[str, ...]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", array)
        (aside / "classes.json").write_text(json.dumps(class_names, ensure_ascii=False), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
