"""A list of everything a run or model folder holds: tensors with what they are, stores of samples, and other files.

Only safetensors files hold tensors. A store is a memory's group of tensors: `images`, `labels`, `tasks` and further
fields side by side, of which the first `size` rows are samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from recollect.errors import UserError
from recollect.storage import UNFINISHED, read_json

KNOWN_FILES = {"config.json", "data.json", "events.jsonl", "result.json", "state.json", "model.json", "lock"}
KINDS = (
    ("fit.", "state of the optimiser"),
    ("drift.", "features of a task's test images, for the drift report"),
    (".past.", "memory of RFE"),
    (".memory.", "memory"),
    (".retrospectors.", "retrospector"),
    (".auxiliaries.", "auxiliary extractor"),
    (".adapter.", "adapter of the second stage"),
    (".anchor.", "frozen copy of the network"),
    (".recent.", "frozen copy of the network"),
    (".previous.", "frozen copy of the network"),
    (".teacher.", "moving average of the network"),
    (".stable.", "moving average of the network"),
    (".plastic.", "moving average of the network"),
    (".means.", "class means"),
    (".fisher_", "importance of weights"),
    (".importance_", "importance of weights"),
    (".path_", "importance of weights"),
    (".anchor_", "weights after the last task"),
    (".attentions.", "attention of a task"),
    (".experts.", "expert of a task"),
    (".backbone.", "network"),
    (".heads.", "network"),
)


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
    """The samples of one memory in one file, as task numbers counted from 1."""

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
    """Files that are neither tensors nor part of a run folder."""
    config: dict[str, Any]

    def problems(self, expect: str) -> list[str]:
        """Where the folder holds more than `none`, `previous` or `reservoir` allows."""
        if expect not in ("none", "previous", "reservoir"):
            raise UserError(f"--expect is none, previous or reservoir; got {expect!r}")
        found = [f"{path} is no file of a run and is not understood" for path in self.others]
        method = self.config.get("method", {})
        for store in self.stores:
            where = f"{store.file}, {store.name}"
            if store.num_beyond:
                found.append(f"{where} has {store.num_beyond} images in slots that should be free")
            if expect == "none" and len(store):
                found.append(f"{where} holds {len(store)} samples of tasks {_list(store.tasks)}")
            if expect == "previous":
                last, newest = int(method.get("last_tasks", 1)), self._newest_task()
                old = [task for task in store.tasks if task <= newest - last]
                if old:
                    found.append(f"{where} holds {len(old)} samples of tasks {_list(old)}, older than the last {last}")
            budget = int(method.get("memory", store.capacity))
            if len(store) > budget:
                found.append(f"{where} holds {len(store)} samples, more than the budget of {budget}")
        return found

    def _newest_task(self) -> int:
        """The last task that has ended: so the names of checkpoints say, or else the samples."""
        names = (store.file.parent.name.removeprefix("task-").partition(".")[0] for store in self.stores)
        ended = [int(name) for name in names if name.isdecimal()]
        return max(ended or [task for store in self.stores for task in store.tasks], default=0)


def take_stock(folder: Path) -> Audit:
    """List a folder's contents; a file that cannot be read is an error, not an omission."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder")
    if not any(
        path.name in ("config.json", "model.json") or path.suffix == ".safetensors" for path in folder.rglob("*")
    ):
        raise UserError(f"{folder} holds no run and no model, so nothing can be said of it; check the path")
    entries, stores, others = [], [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink()):
        if path.suffix == ".safetensors":
            for name, tensor in tensors_of(path):
                entries.append(Entry(path, name, kind_of(name), tuple(tensor.shape), tensor.nbytes))
            stores += stores_of(path)
        elif not _is_known(path) or path.is_symlink():
            others.append(path)
    config = folder / "config.json"
    settings = read_json(config, dict[str, Any]) if config.exists() else {}
    return Audit(folder, entries, stores, others, settings)


def _is_known(path: Path) -> bool:
    whole = re.sub(rf"\.[0-9a-f]+{UNFINISHED}$", "", path.name)  # what a crash left of a file
    return whole in KNOWN_FILES or (path.parent.name == "tensorboard" and path.name.startswith("events.out."))


def tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a file, one at a time."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); the audit would be incomplete") from error


def stores_of(path: Path) -> list[Store]:
    """The memories in a file."""
    held = {name: tensor for name, tensor in tensors_of(path) if name.endswith((".images", ".tasks", "._extra_state"))}
    found = []
    for name, images in held.items():
        prefix = name.removesuffix(".images")
        tasks, size = held.get(f"{prefix}.tasks"), held.get(f"{prefix}._extra_state")
        if not name.endswith(".images") or tasks is None or size is None:
            continue
        try:
            num = int(size[0])
            listed = tuple(int(task) + 1 for task in tasks[:num].tolist())
            beyond = int(images[num:].flatten(1).any(dim=1).sum())
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path}: {prefix} is no memory ({error}); the audit would be incomplete") from error
        found.append(Store(path, prefix, len(images), listed, beyond))
    return found


def kind_of(name: str) -> str:
    """What a tensor is, by its name."""
    return next((kind for part, kind in KINDS if part in f".{name}" or name.startswith(part)), "other")


def _list(tasks: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, sorted(set(tasks))))
