"""Checkpoints: safetensors for tensors, JSON for the rest, written aside and renamed.

`task-NNN/` is the state after so many tasks, `task-NNN.phase-…/` a moment inside the next one; names sort by time.
Each holds `state.safetensors` and `state.json` with the former's hash and its own, the format and what run it belongs
to. The last two are kept, and a damaged one is passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from recollect.engine.runtime import to_host
from recollect.errors import UserError

KEPT = 2
FORMAT = 1
MOST_JSON_BYTES, MOST_TENSOR_BYTES = 64 << 20, 16 << 30
UNFINISHED = "unfinished"
REPLACED = "-replaced"


class Checkpoint(NamedTuple):
    """What a checkpoint holds."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    run: str


class _DamagedError(Exception):
    """Said of one checkpoint."""


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any], run: str = "") -> Path:
    """Write a checkpoint so that a crash leaves either all of it or none; `run` names what it belongs to."""
    try:
        return _save(folder, name, tensors, state, run)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        found = newest(folder)
        good = f"{found} is whole" if found else "there is no earlier one"
        raise UserError(
            f"the checkpoint {folder / name} cannot be written ({error}); {good}. Make room or mend the permissions, "
            "and run the same command again"
        ) from error


def _save(folder: Path, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any], run: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / UNFINISHED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    weights = aside / "state.safetensors"
    save_file(apart({name: to_host(tensor) for name, tensor in tensors.items()}), weights)
    sync(weights)
    about = {"format": FORMAT, "run": run, "sha256": _hash(weights), "state": state}
    about["check"] = _check(about)
    text = aside / "state.json"
    text.write_text(json.dumps(about, allow_nan=False), encoding="utf-8")
    sync(text)
    sync(aside)
    final, before = folder / name, folder / f"{name}{REPLACED}"
    if final.exists():  # out of the way, but not gone before its successor is there; that name sorts before its own
        if before.exists():  # of a crash before it could be removed
            shutil.rmtree(before)
        os.replace(final, before)
    os.replace(aside, final)
    sync(folder)
    for old in (*folder.glob(f"*{REPLACED}"), *ordered(folder)[:-KEPT]):
        shutil.rmtree(old, ignore_errors=True)
    return final


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own, as the format wants it: a layer may go by two names."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        place = whole.untyped_storage().data_ptr()
        found[name] = whole.clone() if place in seen else whole
        seen.add(place)
    return found


def ordered(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""

    def age(path: Path) -> tuple[list[int], bool]:
        return [int(number) for number in re.findall(r"\d+", path.name)], not path.name.endswith(REPLACED)

    return sorted(folder.glob("task-*"), key=age)


def newest(folder: Path) -> Path | None:
    """The last checkpoint, if there is any."""
    found = ordered(folder)
    return found[-1] if found else None


def keep_only(folder: Path, name: str) -> None:
    """Remove every checkpoint but one that is whole, so that nothing dropped since lives on in older ones."""
    load_one(folder / name)
    for other in ordered(folder):
        if other.name != name:
            shutil.rmtree(other)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    sync(folder)


def load_latest(folder: Path, run: str = "") -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and state of the newest checkpoint that is whole; None where there is none at all.

    A damaged one is said and passed over. One of another run or format is refused, and so are damaged ones alone.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(ordered(folder)):
        try:
            about, data = _read(path)
        except _DamagedError as error:
            damaged[path] = f"{path} is damaged ({error})"
            continue
        if about["format"] != FORMAT or about["run"] != run:
            what = f"format {about['format']}" if about["format"] != FORMAT else f"another run ({about['run']})"
            raise UserError(f"the checkpoint {path} is of {what}; move it away to start anew")
        try:
            tensors = load(data)
        except SafetensorError as error:
            damaged[path] = f"{path} is damaged ({error})"
            continue
        if damaged:
            what = "; ".join(damaged.values())
            warnings.warn(f"the checkpoint {what}; it is removed, going on from {path.name}", stacklevel=2)
            for each in damaged:
                shutil.rmtree(each)
        return tensors, dict(about["state"])
    if damaged:
        what = "; ".join(damaged.values())
        raise UserError(f"the checkpoint {what}, and there is no other; remove {folder} to start anew")
    return None


def load_one(path: Path) -> Checkpoint:
    """One checkpoint, refused where it is damaged."""
    try:
        about, data = _read(path)
        return Checkpoint(load(data), about["state"], about["run"])
    except (_DamagedError, SafetensorError) as error:
        raise UserError(f"the checkpoint {path} is damaged ({error}); remove it") from error


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """The JSON and the bytes that match its hash."""
    try:
        text, weights = path / "state.json", path / "state.safetensors"
        for file, most in ((text, MOST_JSON_BYTES), (weights, MOST_TENSOR_BYTES)):
            if file.stat().st_size > most:
                raise _DamagedError(f"{file.name} has {file.stat().st_size} bytes, more than {most}")
        about = json.loads(text.read_text(encoding="utf-8"))
        data = weights.read_bytes()
    except (FileNotFoundError, ValueError, RecursionError) as error:
        raise _DamagedError(str(error)) from error
    except OSError as error:  # not a proof of damage: the disk may come back
        raise UserError(f"the checkpoint {path} cannot be read ({error}); mend that and run again") from error
    schema = {"format": int, "run": str, "sha256": str, "state": dict, "check": str}
    if not isinstance(about, dict) or any(not isinstance(about.get(key), kind) for key, kind in schema.items()):
        raise _DamagedError("state.json has another shape")
    if about.pop("check") != _check(about):
        raise _DamagedError("state.json does not match its own hash")
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise _DamagedError("its hash does not match")
    return about, data


def _check(about: Mapping[str, Any]) -> str:
    """Of the JSON itself."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have what was written to a file or folder reach the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # where folders cannot be opened and need not be
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
