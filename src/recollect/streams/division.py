"""Which classes each task has, and which training images of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from recollect.errors import UserError
from recollect.rng import Key
from recollect.streams.protocol import StreamOptions


def classes_of_tasks(names: tuple[str, ...], options: StreamOptions, key: Key) -> list[list[int]]:
    """The labels that each task is about."""
    if options.shift != "none":
        assert isinstance(options.tasks, int)
        return [list(range(len(names)))] * options.tasks
    groups = _groups(names, options, key)
    for task in range(1, len(groups) if options.repeats else 0):
        earlier = sorted({label for group in groups[:task] for label in group})
        drawn = torch.randperm(len(earlier), generator=(key / "repeats" / task).generator())[: options.repeats]
        groups[task] += [earlier[i] for i in drawn.tolist()]
    return groups


def _groups(names: tuple[str, ...], options: StreamOptions, key: Key) -> list[list[int]]:
    if isinstance(options.tasks, int):
        if options.tasks > len(names):
            raise UserError(f"{options.tasks} tasks need at least as many classes, there are {len(names)}")
        order = list(range(len(names)))
        if options.class_order == "seeded":
            order = torch.randperm(len(names), generator=key.generator()).tolist()
        return [[int(c) for c in group] for group in np.array_split(order, options.tasks)]
    if options.class_order == "seeded":
        raise UserError("class_order=seeded draws the tasks itself; give tasks as a number, or leave the order out")
    position = {name: index for index, name in enumerate(names)}
    unknown = [name for task in options.tasks for name in task if name not in position]
    if unknown:
        raise UserError(
            f"no class is called {unknown[0]!r}; there are {', '.join(names[:10])}{'…' if len(names) > 10 else ''}"
        )
    if any(len(set(task)) < len(task) or not task for task in options.tasks):
        raise UserError("every task needs at least one class, and names each of its classes once")
    return [[position[name] for name in task] for task in options.tasks]


def limit_classes(rows: Mapping[int, Tensor], options: StreamOptions, key: Key) -> dict[int, Tensor]:
    """The rows of each class, cut to `train_per_class` and to sizes that fall by `imbalance`."""
    if options.train_per_class:
        rows = {label: own[: options.train_per_class] for label, own in rows.items()}
    if options.imbalance > 1 and len(rows) > 1:
        ranks = torch.randperm(len(rows), generator=(key / "imbalance").generator()).tolist()
        largest = min(map(len, rows.values()))
        sizes = [max(1, round(largest * options.imbalance ** (-rank / (len(rows) - 1)))) for rank in ranks]
        rows = {label: own[:size] for (label, own), size in zip(rows.items(), sizes, strict=True)}
    return dict(rows)


def divide(
    rows: Mapping[int, Tensor], groups: Sequence[Sequence[int]], options: StreamOptions
) -> list[dict[int, Tensor]]:
    """The rows of each class in each task: all in the only task that has the class, else a part in each."""
    tasks: list[dict[int, Tensor]] = [{label: rows[label][:0] for label in group} for group in groups]
    for label, own in rows.items():
        homes = [index for index, group in enumerate(groups) if label in group]
        others = [index for index in range(len(groups)) if index not in homes]
        if options.shift != "none":
            for index in homes:
                tasks[index][label] = own
            continue
        away = min(round(options.blur * len(own)), len(own) - 1) if others else 0
        for index, part in zip(homes, own[: len(own) - away].tensor_split(len(homes)), strict=True):
            if not len(part):
                raise UserError(f"a class is in {len(homes)} tasks but has {len(own)} training images; give it more")
            tasks[index][label] = part
        for index, part in zip(others, own[len(own) - away :].tensor_split(len(others)), strict=True) if away else ():
            if len(part):
                tasks[index][label] = part
    return tasks
