"""Removes a task's samples from every checkpoint of a run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from recollect.audit.inventory import take_inventory
from recollect.engine import checkpoint
from recollect.errors import UserError
from recollect.storage import lock_folder


def purge(folder: Path, task: int) -> int:
    """Remove the samples of a task (counted from 1) from every checkpoint, verify it, and return how many they were.

    The run can be resumed afterwards, but not to the bits it would have reached with the samples.
    """
    if task < 1:
        raise UserError(f"tasks count from 1, got {task}")
    removed = 0
    take_inventory(folder)  # refuses what is not a folder, or could not be verified afterwards
    with lock_folder(folder):
        for path in checkpoint.ordered(folder / "checkpoint"):
            saved = checkpoint.load_one(path)
            try:
                prefixes = _list_prefixes(saved.tensors)
                num = sum(_remove_samples(saved.tensors, prefix, task - 1) for prefix in prefixes)
            except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"{path} holds no memory that can be purged ({error}); remove that checkpoint"
                ) from error
            if num:
                checkpoint.save(path.parent, path.name, saved.tensors, saved.state, saved.run)
            removed += num
        left = [store for store in take_inventory(folder).stores if task in store.tasks]
    if left:
        raise UserError(f"samples of task {task} are still in {left[0].file}, which is not a checkpoint; remove it")
    return removed


def _list_prefixes(tensors: dict[str, Tensor]) -> list[str]:
    """List the prefixes of the tensor names of memories."""
    prefixes = [name.removesuffix(".images") for name in tensors if name.endswith(".images")]
    return [prefix for prefix in prefixes if f"{prefix}.tasks" in tensors]


def _remove_samples(tensors: dict[str, Tensor], prefix: str, task: int) -> int:
    """Remove a task's samples from a memory, move the others up, and set free slots to zero."""
    size, num_offered = tensors[f"{prefix}._extra_state"].tolist()
    keep = (tensors[f"{prefix}.tasks"][:size] != task).nonzero()[:, 0]
    capacity = len(tensors[f"{prefix}.images"])
    for name, tensor in tensors.items():
        if name.startswith(f"{prefix}.") and not name.endswith("._extra_state"):
            if len(tensor) != capacity:
                raise ValueError(f"{name} has {len(tensor)} rows, not {capacity}")
            kept = tensor[keep].clone()
            tensor.zero_()
            tensor[: len(keep)] = kept
    tensors[f"{prefix}._extra_state"] = torch.tensor([len(keep), num_offered])
    return int(size) - len(keep)
