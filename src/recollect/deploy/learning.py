"""Learning a task from labelled images: the harness's own engine, on a stream whose past is empty.

A learn is a transaction. While it goes on, `unfinished/` holds its checkpoints; the model changes at the end, at once.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.deploy.data import Labelled
from recollect.deploy.model import LearnedTask, Model, Settings
from recollect.deploy.reading import Reader, build, fit_temperature, infos, kept, pixels_of, whole
from recollect.engine import Engine, Observer, Record, Runtime, StopRequest, Training, checkpoint, listening
from recollect.errors import UserError
from recollect.methods.rfe import RFELearner
from recollect.metrics import rmse, squared_error
from recollect.rng import Key
from recollect.streams import Pixels, Split, Stream, Task, TaskInfo
from recollect.streams.build import channel_statistics

VALIDATION = 0.15
FEW = 10  # images a class below which a warning is due
UNEVEN = 5.0  # times as many images in the largest class as in the smallest


def learn(
    model: Model | None,
    settings: Settings,
    data: Labelled,
    name: str,
    runtime: Runtime,
    work: Path,
    backbone: nn.Module | None = None,
    *,
    checkpoint_seconds: float = 300.0,
    observer: Observer | None = None,
    heed_signals: bool = False,
) -> Model:
    """The model after one more task; a learn of the same data that was cut goes on from its checkpoints in `work`."""
    check_name(name)
    past = model.tasks if model else ()
    if name in {task.name for task in past}:
        raise UserError(f"the task {name!r} is learned already; choose another name, or roll back to before it")
    warn_of(data)
    if not past and len(data.class_names) == 1:
        warnings.warn(
            f"one class alone ({data.class_names[0]!r}) has nothing to be told from: a network that is not pretrained "
            "learns nothing of it; begin with several classes, or with a pretrained backbone",
            stacklevel=2,
        )
    started = perf_counter()
    train, validation = _split(data, settings.seed, len(past), sum(len(task.classes) for task in past))
    learner = build(settings, backbone, settings.patience, restored=model is not None)
    own = getattr(learner.network.backbone, "normalisation", None)
    mean, std = (model.mean, model.std) if model else own or channel_statistics(train)
    before = model or Model(settings, mean, std, (), 1.0, {})
    info = TaskInfo(len(past), name, data.class_names)
    empty = Split(data.images, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    old = [Task(each, empty, empty, empty) for each in infos(before)]
    shape = (3, settings.image_size, settings.image_size)
    stream = Stream("images", (*old, Task(info, train, validation, validation)), pixels_of(before), shape, data.digest)
    identity = _identity(before, data, name)
    place = work / identity
    if checkpoint.newest(place) is None:
        _drop_others(work)
        if past:
            _begin(place, before, identity, backbone)
    training = Training(epochs=settings.epochs, learning_rate=settings.learning_rate, batch_size=settings.batch_size)
    with listening() if heed_signals else nullcontext(StopRequest()) as stop:
        engine = Engine(
            learner, stream, training, runtime, settings.seed, observer=observer, checkpoints=place,
            checkpoint_seconds=checkpoint_seconds, run=identity, stop=stop,
        )  # fmt: skip
        record = engine.run()
    drift = _drift(learner, validation, pixels_of(before), runtime)
    seconds = perf_counter() - started
    accuracy = record.matrices["til"][-1][info.index]
    task = LearnedTask(name, data.class_names, data.count(), accuracy, 1.0, *drift, None,
                       datetime.now(UTC).isoformat(timespec="seconds"), seconds)  # fmt: skip
    after = replace(before, tasks=(*past, task), tensors=kept(learner))
    return _calibrated(after, validation, runtime, backbone)


def _drop_others(work: Path) -> None:
    """Remove the checkpoints of learns that were cut and are not gone on with; nothing else that lies there."""
    for path in sorted(work.glob("*")):
        if re.fullmatch(r"[0-9a-f]{32}", path.name) and path.is_dir():
            warnings.warn(f"{path} is of a learn of other images, another name or another model; dropped", stacklevel=3)
            shutil.rmtree(path)


def check_name(task: Any) -> None:
    """A task's name is also a folder's, of test images."""
    if not isinstance(task, str) or not task.strip() or len(task) > 100 or task.startswith("."):
        raise UserError(f"a task's name is a text of 1 to 100 letters that does not begin with a dot, got {task!r}")
    if set(task) & set("/\\") or not task.isprintable():
        raise UserError(f"a task's name has no slash and nothing that cannot be printed, got {task!r}")


def warn_of(data: Labelled) -> None:
    """Say where a class has too few images, or far fewer than another."""
    counts = data.count()
    few = [name for name, number in counts.items() if number < FEW]
    if not any(_num_held(number) for number in counts.values()):
        warnings.warn("too few images to hold any out: accuracy and calibration stay as they were", stacklevel=3)
    if few:
        shown = ", ".join(f"{name!r} ({counts[name]})" for name in few[:5])
        warnings.warn(f"fewer than {FEW} images of {shown}: what is learned of them will be poor", stacklevel=3)
    largest, smallest = (pick(counts, key=counts.__getitem__) for pick in (max, min))
    if counts[largest] > UNEVEN * counts[smallest]:
        sizes = f"{counts[largest]} images of {largest!r} and {counts[smallest]} of {smallest!r}"
        warnings.warn(f"{sizes}: the model will favour the former", stacklevel=3)


def _num_held(num_images: int) -> int:
    """Of so many images of a class, how many are held out for validation."""
    return min(round(VALIDATION * num_images), num_images - 1)


def _split(data: Labelled, seed: int, task: int, first_unit: int) -> tuple[Split, Split]:
    """Training and validation images, drawn class by class; labels count the classifier's units."""
    train, held = [], []
    for label in range(len(data.class_names)):
        rows = (data.labels == label).nonzero()[:, 0]
        key = Key(seed) / "validation" / task / label
        rows = rows[torch.randperm(len(rows), generator=key.generator())]
        num = _num_held(len(rows))
        held.append(rows[:num])
        train.append(rows[num:])
    chosen, kept_out = torch.cat(train).sort().values, torch.cat(held).sort().values
    return (
        Split(data.images, chosen, data.labels[chosen] + first_unit),
        Split(data.images, kept_out, data.labels[kept_out] + first_unit),
    )


def _identity(before: Model, data: Labelled, name: str) -> str:
    """Names a learn, so that only the same one goes on with its checkpoints."""
    found = hashlib.sha256(json.dumps([asdict(before.settings), name, data.digest, len(before.tasks)]).encode())
    for key in sorted(before.tensors):
        found.update(np.asarray(before.tensors[key].contiguous().flatten().view(torch.uint8)).data)
    return found.hexdigest()[:32]


def _begin(place: Path, before: Model, identity: str, backbone: nn.Module | None) -> None:
    """A checkpoint as the engine would have left it after the tasks learned so far."""
    fresh = build(before.settings, backbone)
    for info in infos(before):
        fresh.begin_task(info)
    tensors = {f"learner.{name}": tensor for name, tensor in whole(fresh, before.tensors).items()}
    state = {"position": {"lessons": len(before.tasks)}, "record": vars(Record())}
    checkpoint.save(place, f"task-{len(before.tasks):03}", tensors, state, identity)


@torch.inference_mode()
def _drift(learner: RFELearner, split: Split, pixels: Pixels, runtime: Runtime) -> tuple[float | None, float | None]:
    """RMSE of the newest hop: how far this task moved the features of its own images, and what r_t leaves of it."""
    anchor, chain = learner.rfe.anchor, learner.rfe.chain
    if anchor is None or not chain.num_hops or not len(split):
        return None, None
    totals, num = torch.zeros(2, device=runtime.device), 0
    learner.eval()
    for positions in torch.arange(len(split)).split(64):
        images, _ = split.take(positions)
        x = pixels.plain(images.to(runtime.device))
        with runtime.autocast():
            now, then = learner.network.backbone(x), anchor(x)
            back = chain.hop(chain.num_hops - 1, now, x)
        totals += torch.stack([squared_error(now, then), squared_error(back, then)])
        num += then.numel()
    drifted, rectified = (rmse(total, num) for total in totals.tolist())
    return drifted, rectified


def _calibrated(model: Model, validation: Split, runtime: Runtime, backbone: nn.Module | None) -> Model:
    """With temperatures chosen on the validation images of the newest task, and how far those usually lie."""
    images, labels = validation.take(torch.arange(len(validation)))
    reader = Reader(model, runtime, backbone)
    found = reader.outputs(images)
    units = reader.learner.network.units(len(model.tasks) - 1)
    within = fit_temperature(found.within[:, units], labels - units.start)
    names = [name for task in model.tasks for name in task.classes]
    owner = torch.tensor([names.index(name) for name in names])  # a class that came back counts as one
    across = fit_temperature(found.across, labels, owner) if len(labels) else model.temperature
    away: Tensor = reader.distances(images)
    typical = (float(away.mean()), float(away.std(correction=0))) if len(away) else None
    newest = replace(model.tasks[-1], temperature=within, typical=typical)
    return replace(model, tasks=(*model.tasks[:-1], newest), temperature=across)
