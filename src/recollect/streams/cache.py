"""Decoded datasets, kept as uint8 arrays that open memory-mapped; written aside and renamed, so never half there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from recollect.streams.archive import data_folder
from recollect.streams.protocol import Dataset, content_digest

FORMAT = 1
Arrays = Mapping[str, np.ndarray]
Decoded = tuple[Arrays, tuple[str, ...]]


def cached(name: str, fingerprint: str, decode: Callable[[], Decoded], **known: Any) -> Dataset:
    """The dataset from the cache, decoded into it where the fingerprint is new; `known` are its further fields."""
    folder = data_folder() / "arrays" / f"{name}-{fingerprint}-{FORMAT}"
    if not (folder / "about.json").exists():
        with Console(stderr=True).status(f"decoding {name}, once"):
            _write(folder, *decode())
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
            np.save(aside / f"{name}.npy", array)
        about = {
            "classes": class_names,
            "digest": content_digest(class_names, *(arrays[name] for name in sorted(arrays))),
        }
        (aside / "about.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
