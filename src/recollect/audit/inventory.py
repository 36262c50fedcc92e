"""Lists everything that a run or model folder contains: tensors with their roles, stores of samples, and other files.

Only safetensors files contain tensors. A store is the group of tensors of one memory: `images`, `labels`, `tasks` and
other fields, of which the first `size` rows are samples.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.audit.files import (
    INCOMPLETE,
    Stored,
    check_count,
    list_files,
    open_layout,
    read_pieces,
    unreadable_error,
)
from recollect.errors import UserError
from recollect.inference.stored import ABOUT, FILE, AboutFile
from recollect.methods import Method, methods
from recollect.methods.contents import COMMON, kind_of_tensor
from recollect.storage import UNFINISHED, read_json

KNOWN_FILES = {"config.json", "data.json", "events.jsonl", "result.json", "state.json", "model.json", "lock", ABOUT}
MAX_TEXT = 64 << 20  # bytes of a text file that a run writes
MAX_COUNT = 1 << 40  # samples or tasks that a config may name
FILE_PARTS = {
    "fit": "state of the optimiser",
    "drift": "features of a task's test images, for the drift report",
}


@dataclass(frozen=True)
class Entry:
    """One tensor of one file."""

    file: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class Store:
    """The samples of one memory in one file, by their task numbers, counted from 1."""

    file: Path
    name: str
    capacity: int
    tasks: tuple[int, ...]
    num_beyond: int = 0
    """Slots that should be free but are not empty."""

    def __len__(self) -> int:
        return len(self.tasks)


@dataclass(frozen=True)
class Audit:
    """Everything in a folder."""

    folder: Path
    entries: list[Entry]
    stores: list[Store]
    others: list[Path]
    """Files that contain no tensors and do not belong to a run or model folder."""
    config: dict[str, Any]

    def problems(self, expect: str) -> list[str]:
        """Describe what the folder contains beyond what `none`, `previous` or `reservoir` allows."""
        if expect not in ("none", "previous", "reservoir"):
            raise UserError(f"--expect is none, previous or reservoir; got {expect!r}")
        problems = [f"{path} is not a file of a run, and its content is unknown" for path in self.others]
        for store in self.stores:
            where = f"{store.file}, {store.name}"
            if store.num_beyond:
                problems.append(f"{where} has {store.num_beyond} images in slots that should be free")
            if expect == "none" and len(store):
                problems.append(f"{where} holds {len(store)} samples of tasks {_format_tasks(store.tasks)}")
            if expect == "previous":
                last, newest = self._read_option("last_tasks", 1), self._find_newest_task()
                old = [task for task in store.tasks if task <= newest - last]
                if old:
                    tasks = _format_tasks(old)
                    problems.append(f"{where} holds {len(old)} samples of tasks {tasks}, older than the last {last}")
            budget = self._read_option("memory", store.capacity)
            if len(store) > budget:
                problems.append(f"{where} holds {len(store)} samples, more than the budget of {budget}")
        return problems

    def _read_option(self, name: str, default: int) -> int:
        """Return a whole number among the method's options."""
        path, method = self.folder / "config.json", self.config.get("method", {})
        if not isinstance(method, dict):
            raise unreadable_error(path, f"the method's options are a {type(method).__name__}")
        return check_count(method.get(name, default), f"{path}: {name}", MAX_COUNT)

    def _find_newest_task(self) -> int:
        """Return the last task that has ended, by the names of checkpoints or else by the samples."""
        names = (store.file.parent.name.removeprefix("task-").partition(".")[0] for store in self.stores)
        ended = [int(name) for name in names if name.isdecimal()]
        return max(ended or [task for store in self.stores for task in store.tasks], default=0)


def take_inventory(folder: Path, method: Method | None = None) -> Audit:
    """List a folder's contents; a file that cannot be read is an error.

    `method` names the roles of tensors of a method that is not registered.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a run or model folder")
    paths = list_files(folder)
    if not any(path.name in ("config.json", "model.json") or path.suffix == ".safetensors" for path in paths):
        raise UserError(f"{folder} holds no run and no model, so nothing can be said of it; check the path")
    config = folder / "config.json"
    settings = read_json(config, dict[str, Any], INCOMPLETE) if config.exists() else {}
    labels = _collect_labels(settings, method)
    entries, stores, others = [], [], []
    for path in paths:
        if path.suffix == ".safetensors":
            for stored in open_layout(path).tensors:
                num_bytes = stored.end - stored.begin
                entries.append(Entry(path, stored.name, describe_tensor(stored.name, labels), stored.shape, num_bytes))
            stores += list_stores(path)
        if _is_stored_export(path):
            entries.append(Entry(path, path.name, "exported model", (), path.stat().st_size))
        elif path.is_symlink() or (path.suffix != ".safetensors" and not _is_known(path)):
            others.append(path)
    return Audit(folder, entries, stores, others, settings)


def _is_stored_export(path: Path) -> bool:
    """Return whether a file is the export of a version, with the content that it was stored with."""
    if path.name != FILE or path.is_symlink() or not (path.parent / ABOUT).is_file():
        return False
    about = read_json(path.parent / ABOUT, AboutFile, INCOMPLETE)
    digest = hashlib.sha256()
    for piece in read_pieces(path):
        digest.update(piece)
    return digest.hexdigest() == about["sha256"]


def _is_known(path: Path) -> bool:
    """Return whether a file has the name and the format of one that a run or a model writes."""
    name, num_cut = re.subn(rf"\.[0-9a-f]+\.{UNFINISHED}$", "", path.name)  # left by a crash
    if path.parent.name == "tensorboard" and path.name.startswith("events.out."):
        return True
    if name not in KNOWN_FILES or not path.is_file() or path.stat().st_size > MAX_TEXT:
        return False
    data = b"".join(read_pieces(path))
    if name == "lock":
        return re.fullmatch(rb"\s*\d{0,20}\s*", data) is not None
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=not num_cut)
        for line in text.splitlines()[:-1] if name == "events.jsonl" else () if num_cut else [text]:
            json.loads(line)
    except (ValueError, RecursionError):
        return False
    return not num_cut or not text or text.startswith("{")


def list_stores(path: Path) -> list[Store]:
    """List the memories in a file."""
    tensors = {stored.name: stored for stored in open_layout(path).tensors}
    stores = []
    for name, images in tensors.items():
        prefix = name.removesuffix(".images")
        tasks, size = tensors.get(f"{prefix}.tasks"), tensors.get(f"{prefix}._extra_state")
        if not name.endswith(".images") or tasks is None or size is None:
            continue
        try:
            num, capacity = int(_read(path, size)[0]), images.shape[0]
            listed = tuple(int(task) + 1 for task in _read(path, tasks)[:num].tolist())
            if not len(listed) == num <= capacity:
                raise ValueError(f"{num} samples, {len(listed)} task numbers, {capacity} slots")
            beyond = _count_used_slots(path, images, num)
        except (IndexError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise unreadable_error(path, f"{prefix} is not a memory: {error}") from error
        stores.append(Store(path, prefix, capacity, listed, beyond))
    return stores


def _read(path: Path, stored: Stored) -> Tensor:
    data = b"".join(read_pieces(path, stored.begin, stored.end))
    return torch.frombuffer(bytearray(data), dtype=stored.dtype) if data else torch.zeros(0)


def _count_used_slots(path: Path, images: Stored, first: int) -> int:
    """Count the slots from `first` on that are not empty."""
    row = (images.end - images.begin) // max(images.shape[0], 1)
    begins = range(images.begin + first * row, images.end, row or 1)
    return sum(any(piece.count(0) < len(piece) for piece in read_pieces(path, at, at + row)) for at in begins)


def _collect_labels(settings: dict[str, Any], given: Method | None) -> dict[str, str]:
    """Collect the roles of tensors by attribute name: of the folder's own method first, then of all others."""
    rows, method = methods(), settings.get("method")
    name = method.get("name") if isinstance(method, dict) else None
    own = [rows[name].contents] if isinstance(name, str) and name in rows else []
    own += [given.contents] if given is not None else []
    labels: dict[str, str] = {}
    for contents in (*own, *(row.contents for row in rows.values()), COMMON):
        for part, label in contents.items():
            labels.setdefault(part, label)
    return labels


def describe_tensor(name: str, labels: Mapping[str, str]) -> str:
    """Return the role of a tensor, by the attributes in its name."""
    file_part = name.split(".")[0]
    return FILE_PARTS[file_part] if file_part in FILE_PARTS else kind_of_tensor(name, labels)


def _format_tasks(tasks: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, sorted(set(tasks))))
