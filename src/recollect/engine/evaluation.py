"""Both evaluations in one pass over the images, counted on the device; drift in another, on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from recollect.device import to_host
from recollect.engine.runtime import Runtime
from recollect.methods import Learner
from recollect.metrics import on_principal_axes, rmse, shown_rows, squared_error
from recollect.rng import Key
from recollect.streams import Batch, Pixels, Split, Task, TaskData

Accuracies = dict[str, list[float | None]]


def plain_batches(split: Split, pixels: Pixels, runtime: Runtime) -> Iterator[Batch]:
    """Unaugmented batches of all images, in order."""
    return TaskData.of(split, pixels, runtime.device, Key(0)).batches()


@torch.inference_mode()
def evaluate(
    learner: Learner[Any], tasks: Sequence[Task], part: Literal["test", "validation"], pixels: Pixels, runtime: Runtime
) -> Accuracies:
    """Accuracy in percent on each task: within the task (til), over all units (cil), and til without the chain.

    `task_prediction` is how often the unit ranked first over all units is of the image's own task. A class may have a
    unit in each of several tasks: over all units, any of them is right, and there is no `task_prediction`.

    Batches go across the borders of tasks: a batch has a cost of its own, which grows with the hops of a chain, so many
    small tasks are not read one by one.
    """
    learner.eval()
    network, read = learner.network, learner.reader(runtime.dtype, without_chain=True)
    splits: list[Split] = [getattr(task, part) for task in tasks]
    correct: dict[str, list[Tensor]] = {"til": [], "cil": [], "til_without_chain": [], "task_prediction": []}
    units, class_of_unit = _units(learner, tasks)
    names = [name for task in tasks for name in task.info.class_names]
    has_tasks = len(set(names)) == len(names)  # else a class belongs to several
    task_of_image = torch.repeat_interleave(torch.tensor([len(split) for split in splits])).to(runtime.device)
    start = 0
    for batch in plain_batches(Split.concatenate(splits), pixels, runtime):
        y, others = batch.y, ~units[task_of_image[start : start + len(batch.y)]]
        start += len(y)
        with runtime.autocast():
            scores = read(batch.x)
        correct["til"].append(_within(scores.til, others).argmax(dim=1) == y)
        if network.num_tasks:
            best = scores.cil[:, network.seen()].argmax(dim=1)
            correct["cil"].append(class_of_unit[best] == class_of_unit[y])
            if has_tasks:
                correct["task_prediction"].append(network.task_of_unit[best] == network.task_of_unit[y])
        if scores.til_without_chain is not None:
            correct["til_without_chain"].append(_within(scores.til_without_chain, others).argmax(dim=1) == y)
    accuracies = {name: _percent_per_task(rows, splits) for name, rows in correct.items()}
    for index, task in enumerate(tasks):
        if task.info.index >= network.num_tasks:
            accuracies["cil"][index] = accuracies["task_prediction"][index] = None  # future tasks are not ranked
    return accuracies


def _units(learner: Learner[Any], tasks: Sequence[Task]) -> tuple[Tensor, Tensor]:
    """Which units each task's classes have, as a mask [tasks, units], and a number of the class of each unit.

    Units of tasks that are not evaluated have a number of their own.
    """
    network = learner.network
    mask = torch.zeros(len(tasks), sum(network.sizes()), dtype=torch.bool)
    class_of_unit, numbers = -1 - torch.arange(mask.shape[1]), dict[str, int]()
    for row, task in enumerate(tasks):
        own = network.units(task.info.index)
        units = torch.arange(own.start, own.stop) if task.info.units is None else torch.tensor(task.info.units)
        classes = [numbers.setdefault(name, len(numbers)) for name in task.info.class_names]
        mask[row, units] = True
        class_of_unit[units] = torch.tensor(classes, dtype=torch.int64)
    device = network.task_of_unit.device
    return mask.to(device), class_of_unit.to(device)


def _within(scores: Tensor, others: Tensor) -> Tensor:
    """Scores with -∞ at the units of other tasks."""
    return scores.masked_fill(others[:, : scores.shape[1]], float("-inf"))


def _percent_per_task(correct: Sequence[Tensor], splits: Sequence[Split]) -> list[float | None]:
    """From whether each image of all splits is classified correctly; None where there is no image, or nothing known."""
    if not correct:
        return [None] * len(splits)
    sizes = [len(split) for split in splits]
    counts = torch.stack([rows.sum() for rows in torch.cat(list(correct)).split(sizes)]).tolist()
    return [100 * count / size if size else None for count, size in zip(counts, sizes, strict=True)]


@torch.inference_mode()
def original_features(learner: Learner[Any], task: Task, pixels: Pixels, runtime: Runtime) -> Tensor:
    """f_t of a task's own test images, taken when it ends; for the report only, never part of the model."""
    learner.eval()
    features = []
    for batch in plain_batches(task.test, pixels, runtime):
        with runtime.autocast():
            features.append(to_host(learner.features(batch.x)[0].float()))
    return torch.cat(features) if features else torch.zeros(0, 1)


class Drift(NamedTuple):
    """RMSE of a task's drifted and rectified features against its original ones, and some of the features."""

    drifted: float | None
    rectified: float | None
    drifted_points: list[list[float]]
    rectified_points: list[list[float]] | None


@torch.inference_mode()
def measure_drift(learner: Learner[Any], task: Task, original: Tensor, pixels: Pixels, runtime: Runtime) -> Drift:
    """How far a task's features have gone, and how far the chain brings them back."""
    learner.eval()
    totals = torch.zeros(2, device=runtime.device)
    start, currents, estimated = 0, [], []
    for batch in plain_batches(task.test, pixels, runtime):
        with runtime.autocast():
            current, estimates = learner.features(batch.x)
        then = original[start : start + len(batch.y)].to(runtime.device)
        start += len(batch.y)
        totals[0] += squared_error(current, then)
        currents.append(to_host(current.float()))
        if estimates is not None:
            totals[1] += squared_error(estimates[task.info.index], then)
            estimated.append(to_host(estimates[task.info.index].float()))
    if not start:
        return Drift(None, None, [], None)
    drifted, rectified = (rmse(total, original.numel()) for total in totals.tolist())
    rows = shown_rows(start)
    points = [on_principal_axes(original, torch.cat(features)[rows]) for features in (currents, estimated) if features]
    return Drift(drifted, rectified if estimated else None, points[0], points[1] if estimated else None)
