"""Checkpoints at task ends: safetensors for tensors, JSON for the rest, written aside and renamed.

`task-NNN/` holds `state.safetensors` and `state.json` with the former's hash; the last two are kept.
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


def save(folder: Path, num_tasks: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Path:
    """Write the state after `num_tasks` tasks so that a crash leaves either all of it or none."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / "unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    weights = aside / "state.safetensors"
    save_file({name: to_host(tensor).contiguous() for name, tensor in tensors.items()}, weights)
    _sync(weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    text = aside / "state.json"
    text.write_text(json.dumps({"num_tasks": num_tasks, "sha256": digest, "record": record}), encoding="utf-8")
    _sync(text)
    final = folder / f"task-{num_tasks:03}"
    shutil.rmtree(final, ignore_errors=True)
    os.replace(aside, final)
    _sync(folder)
    for old in sorted(folder.glob("task-*"))[:-KEPT]:
        shutil.rmtree(old)
    return final


def load_latest(folder: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint: tasks done, tensors, record; None where there is none. A damaged one is refused."""
    found = sorted(folder.glob("task-*"))
    if not found:
        return None
    path = found[-1]
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        data = (path / "state.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != state["sha256"]:
            raise ValueError("its hash does not match")
        return int(state["num_tasks"]), load_file(path / "state.safetensors"), dict(state["record"])
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
