"""Checkpoints: safetensors for tensors, JSON for the rest, written aside and renamed.

`task-NNN/` is the state after so many tasks, `task-NNN.phase-…/` a moment inside the next one; names sort by time.
Each holds `state.safetensors` and `state.json` with the former's hash. The last two are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.engine.runtime import to_host
from recollect.errors import UserError

KEPT = 2


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint so that a crash leaves either all of it or none."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / "unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    weights = aside / "state.safetensors"
    save_file({name: to_host(tensor).contiguous() for name, tensor in tensors.items()}, weights)
    _sync(weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    text = aside / "state.json"
    text.write_text(json.dumps({"sha256": digest, "state": state}), encoding="utf-8")
    _sync(text)
    final = folder / name
    shutil.rmtree(final, ignore_errors=True)
    os.replace(aside, final)
    _sync(folder)
    for old in sorted(folder.glob("task-*"))[:-KEPT]:
        shutil.rmtree(old)
    return final


def newest(folder: Path) -> Path | None:
    """The last good checkpoint, if there is any."""
    return max(folder.glob("task-*"), default=None)


def load_latest(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint's tensors and state; None where there is none. A damaged one is refused."""
    path = newest(folder)
    if path is None:
        return None
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        data = (path / "state.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != state["sha256"]:
            raise ValueError("its hash does not match")
        return load_file(path / "state.safetensors"), dict(state["state"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(
            f"the checkpoint {path} is damaged ({error}); delete that folder to go on from the one before, "
            "or start anew with --force"
        ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
