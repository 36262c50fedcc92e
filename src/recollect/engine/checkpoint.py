"""Checkpoints: safetensors for tensors, JSON for the rest, written aside and renamed.

`task-NNN/` is the state after so many tasks, `task-NNN.phase-…/` a moment inside the next one; names sort by time.
Each holds `state.safetensors` and `state.json` with the former's hash and its own, the format and what run it belongs
to. The last two are kept, and a damaged one is skipped for the one before.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from safetensors import SafetensorError
from torch import Tensor

from recollect.device import to_host
from recollect.errors import UserError
from recollect.storage import UNFINISHED, seal, seal_matches, sync, write_json
from recollect.storage.documents import load_json
from recollect.storage.tensors import load_tensors, save_tensors

NUM_KEPT = 2
FORMAT = 1
REPLACED = "-replaced"
MAX_REPLACED = 10  # times that a checkpoint may be replaced while it is read


class StateFile(TypedDict):
    """state.json."""

    format: int
    run: str
    """What the checkpoint belongs to."""
    sha256: str
    """Of state.safetensors."""
    state: dict[str, Any]
    check: str
    """Seals the rest."""


class Checkpoint(NamedTuple):
    """What a checkpoint holds."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    run: str


class _DamagedError(Exception):
    """One checkpoint is damaged."""


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any], run: str = "") -> Path:
    """Write a checkpoint so that a crash leaves either all of it or none; `run` names what it belongs to."""
    try:
        return _save(folder, name, tensors, state, run)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        last = newest(folder)
        good = f"{last} is intact" if last else "there is no earlier one"
        raise UserError(
            f"the checkpoint {folder / name} cannot be written ({error}); {good}. Make room or mend the permissions, "
            "and run the same command again"
        ) from error


def _save(folder: Path, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any], run: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / UNFINISHED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    sha256 = save_tensors(aside / "state.safetensors", {name: to_host(tensor) for name, tensor in tensors.items()})
    write_json(aside / "state.json", seal({"format": FORMAT, "run": run, "sha256": sha256, "state": state}, "check"))
    sync(aside)
    final, before = folder / name, folder / f"{name}{REPLACED}"
    if final.exists():  # out of the way, but not gone before its successor is there; that name sorts before its own
        if before.exists():  # of a crash before it could be removed
            shutil.rmtree(before)
        os.replace(final, before)
    os.replace(aside, final)
    sync(folder)
    for old in (*folder.glob(f"*{REPLACED}"), *ordered(folder)[:-NUM_KEPT]):
        shutil.rmtree(old, ignore_errors=True)
    return final


def ordered(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""

    def age(path: Path) -> tuple[list[int], bool]:
        return [int(number) for number in re.findall(r"\d+", path.name)], not path.name.endswith(REPLACED)

    return sorted(folder.glob("task-*"), key=age)


def newest(folder: Path) -> Path | None:
    """The last checkpoint, if there is any."""
    checkpoints = ordered(folder)
    return checkpoints[-1] if checkpoints else None


def keep_only(folder: Path, name: str) -> None:
    """Remove every checkpoint but one that is intact, so that older ones hold no samples that were dropped since."""
    load_one(folder / name)
    for other in ordered(folder):
        if other.name != name:
            shutil.rmtree(other)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    sync(folder)


def load_latest(folder: Path, run: str = "") -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and state of the newest intact checkpoint; None where there is none at all.

    A damaged one is reported and skipped. One of another run or format is refused, and so are damaged ones alone.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(ordered(folder)):
        try:
            about = _read(path, run)
            tensors = _load(path, about)
        except _DamagedError as error:
            damaged[path] = f"{path} is damaged ({error})"
            continue
        if damaged:
            what = "; ".join(damaged.values())
            warnings.warn(f"the checkpoint {what}; it is removed, resuming from {path.name}", stacklevel=2)
            for damaged_path in damaged:
                shutil.rmtree(damaged_path)
        return tensors, about["state"]
    if damaged:
        what = "; ".join(damaged.values())
        raise UserError(f"the checkpoint {what}, and there is no other; remove {folder} to start over")
    return None


def load_newest(folder: Path, run: str = "") -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and state of the newest checkpoint, refused where it is damaged; None where there is none.

    Nothing is removed. If a run that is still training replaces the checkpoint meanwhile, its successor is read.
    """
    path = newest(folder)
    for _ in range(MAX_REPLACED):
        if path is None:
            return None
        before = _inode(path)
        try:
            about = _read(path, run)
            return _load(path, about), about["state"]
        except (_DamagedError, FileNotFoundError) as error:
            damage, successor = error, newest(folder)
            if successor == path and before is not None and _inode(path) == before:
                break
            path = successor
    raise UserError(
        f"the checkpoint {path} is damaged ({damage}); restore it from a copy, or repeat the run in another folder"
    ) from damage


def _inode(path: Path) -> int | None:
    """Tells a checkpoint from its successor of the same name; None where it is gone."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def load_one(path: Path) -> Checkpoint:
    """One checkpoint, refused where it is damaged."""
    try:
        about = _read(path)
        return Checkpoint(_load(path, about), about["state"], about["run"])
    except _DamagedError as error:
        raise UserError(f"the checkpoint {path} is damaged ({error}); remove it") from error


def _read(path: Path, run: str | None = None) -> StateFile:
    """The JSON, as it was sealed; where `run` is given, refused if it is of another run or format."""
    file = path / "state.json"
    _check_readable(file)
    try:
        about = load_json(file, StateFile)
    except ValueError as error:
        raise _DamagedError(f"state.json: {error}") from error
    if not seal_matches(about, "check"):
        raise _DamagedError("state.json does not match its own hash")
    if run is not None and (about["format"] != FORMAT or about["run"] != run):
        what = f"format {about['format']}" if about["format"] != FORMAT else f"another run ({about['run']})"
        raise UserError(f"the checkpoint {path} is of {what}; move it away to start over")
    return about


def _load(path: Path, about: StateFile) -> dict[str, Tensor]:
    file = path / "state.safetensors"
    _check_readable(file)
    try:
        return load_tensors(file, about["sha256"])
    except ValueError as error:
        raise _DamagedError(str(error)) from error


def _check_readable(file: Path) -> None:
    """A file that is gone is damage; one that cannot be read for now is not, since the disk may come back."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise _DamagedError(f"{file.name} is not a regular file")
        with file.open("rb") as opened:
            opened.read(1)
    except FileNotFoundError as error:
        raise _DamagedError(f"{file.name} is missing") from error
    except OSError as error:
        raise UserError(f"the checkpoint {file.parent} cannot be read ({error}); repair that and run again") from error
