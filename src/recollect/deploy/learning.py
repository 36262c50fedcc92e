"""Learning a task from labelled images: the harness's own engine, on a stream whose past is empty.

A learn is a transaction. While it goes on, `unfinished/` holds its checkpoints; the model changes at the end, at once.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import unicodedata
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core import GatedRetrospector
from recollect.deploy.data import Labelled
from recollect.deploy.model import LearnedTask, Model, Settings, Typical
from recollect.deploy.reading import (
    Reader,
    build,
    deployable_tensors,
    features_of,
    fit_temperature,
    infos,
    pixels_of,
    restore_learner,
)
from recollect.engine import Engine, Observer, Runtime, StopRequest, Training, checkpoint, listening
from recollect.engine.runtime import to_host
from recollect.errors import UserError
from recollect.methods.rfe import RFELearner
from recollect.metrics import rmse, squared_error
from recollect.rng import Key
from recollect.streams import Split, Stream, Task, TaskInfo
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
    name = check_name(name)
    past = model.tasks if model else ()
    if name in {task.name for task in past}:
        raise UserError(f"the task {name!r} is learned already; choose another name, or roll back to before it")
    if len(data.images) < 2:
        raise UserError(f"one image alone (of {data.class_names[0]!r}) cannot be learned from; give some more")
    warn_of(data)
    if not past and len(data.class_names) == 1:
        warnings.warn(
            f"one class alone ({data.class_names[0]!r}) has nothing to be told from: a network that is not pretrained "
            "learns nothing of it; begin with several classes, or with a pretrained backbone",
            stacklevel=2,
        )
    train, validation = _split(data, settings.seed, len(past), sum(len(task.classes) for task in past))
    full_precision = replace(runtime, precision="fp32")  # predictions and all that is measured are in it
    if model is None:
        learner = build(settings, backbone, settings.patience, restored=False)
        own = getattr(learner.network.backbone, "normalisation", None)
        mean, std = own or channel_statistics(train)
        before = Model(settings, mean, std, (), 1.0, {})
    else:
        learner, before = restore_learner(model, runtime, backbone, settings.patience), model
    pixels = pixels_of(before)
    held_out, labels = validation.take(torch.arange(len(validation)))
    features_before = features_of(learner, pixels, held_out, full_precision) if past else None
    info = TaskInfo(len(past), name, data.class_names)
    empty = Split(data.images, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    old = [Task(learned, empty, empty, empty) for learned in infos(before)]
    shape = (3, settings.image_size, settings.image_size)
    stream = Stream("images", (*old, Task(info, train, validation, validation)), pixels, shape, data.digest)
    identity = identity_of(settings, model, data, name, backbone)
    checkpoints = work / identity
    if checkpoint.newest(checkpoints) is None:
        _drop_others(work)
    training = Training(epochs=settings.epochs, learning_rate=settings.learning_rate, batch_size=settings.batch_size)
    with listening() if heed_signals else nullcontext(StopRequest()) as stop:
        engine = Engine(
            learner, stream, training, runtime, settings.seed, num_learned=len(past), observer=observer,
            checkpoints=checkpoints, checkpoint_seconds=checkpoint_seconds, run=identity, stop=stop,
        )  # fmt: skip
        engine.run()
    task = LearnedTask(
        name=name, classes=data.class_names, images=data.count(), accuracy=None, across=None, temperature=1.0,
        drifted=None, rectified=None, learned=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=sum(engine.record.seconds.values()), learn=identity,
    )  # fmt: skip
    after = replace(before, tasks=(*past, task), tensors={}, typical=None)
    if len(validation):
        if features_before is not None:
            after = _skip_harmful_hop(after, learner, held_out, features_before, full_precision)
        after = _measure(after, Reader(after, learner, full_precision), held_out, labels)
    return replace(after, tensors=deployable_tensors(learner))


def _drop_others(work: Path) -> None:
    """Remove the checkpoints of learns that were cut and are not gone on with; nothing else that lies there."""
    for path in sorted(work.glob("*")):
        if re.fullmatch(r"[0-9a-f]{32}", path.name) and path.is_dir():
            warnings.warn(f"{path} is of a learn of other images, another name or another model; dropped", stacklevel=3)
            shutil.rmtree(path)


def check_name(task: Any) -> str:
    """A task's name, which is also a folder's of test images, with each letter written in one way."""
    if not isinstance(task, str) or not task.strip() or len(task) > 100 or task.startswith("."):
        raise UserError(f"a task's name is a text of 1 to 100 letters that does not begin with a dot, got {task!r}")
    if set(task) & set("/\\") or not task.isprintable():
        raise UserError(f"a task's name has no slash and nothing that cannot be printed, got {task!r}")
    return unicodedata.normalize("NFC", task)


def warn_of(data: Labelled) -> None:
    """Say where a class has too few images, or far fewer than another."""
    counts = data.count()
    few = [name for name, number in counts.items() if number < FEW]
    if not any(_num_held(number) for number in counts.values()):
        warnings.warn(
            "too few images to hold any out: nothing is measured of this task, and calibration stays as it was",
            stacklevel=3,
        )
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


def identity_of(
    settings: Settings, model: Model | None, data: Labelled, name: str, backbone: nn.Module | None = None
) -> str:
    """Names a learn, so that only the same one goes on with its checkpoints."""
    trained = [parameter.requires_grad for parameter in backbone.parameters()] if backbone else []
    said = [asdict(settings), name, data.digest, len(model.tasks) if model else 0, *trained]
    found = hashlib.sha256(json.dumps(said).encode())
    tensors = model.tensors if model else backbone.state_dict() if backbone else {}
    for key in sorted(tensors):
        found.update(np.asarray(to_host(tensors[key]).contiguous().flatten().view(torch.uint8)).data)
    return found.hexdigest()[:32]


def _measure(model: Model, reader: Reader, images: Tensor, labels: Tensor) -> Model:
    """The model with what validation images of its newest task give: temperatures, accuracies, usual features."""
    outputs = reader.outputs(images)
    units = reader.learner.network.units(len(model.tasks) - 1)
    within = fit_temperature(outputs.within[:, units], labels - units.start)
    names = [name for task in model.tasks for name in task.classes]
    owner = torch.tensor([names.index(name) for name in names])  # a class that came back counts as one
    across = fit_temperature(outputs.across, labels, owner)
    probabilities = (outputs.across / across).softmax(1) @ F.one_hot(owner, len(names)).float()
    features = reader.features(images)
    newest = replace(
        model.tasks[-1],
        temperature=within,
        accuracy=_percent(outputs.within[:, units].argmax(1) == labels - units.start),
        across=_percent(probabilities.argmax(1) == owner[labels]),
    )
    _warn_of_guessing(newest, len(labels))
    mean, deviation = (tuple(values.tolist()) for values in (features.mean(0), features.std(0, correction=0)))
    typical = Typical(mean, deviation, len(labels), float(probabilities.amax(1).mean()))
    return replace(model, tasks=(*model.tasks[:-1], newest), temperature=across, typical=typical)


def _warn_of_guessing(task: LearnedTask, num_images: int) -> None:
    """Say where a task was hardly learned: right no more often than guessing may be, twice in a hundred times."""
    chance = 1 / len(task.classes)
    likely = 100 * (chance + 2 * (chance * (1 - chance) / num_images) ** 0.5)
    if len(task.classes) > 1 and task.accuracy is not None and task.accuracy <= likely < 100:
        warnings.warn(
            f"{task.accuracy:.0f} % of the validation images of {task.name!r} are right, where guessing may give "
            f"{likely:.0f} %: it was hardly learned; give it more images or epochs, or a pretrained backbone",
            stacklevel=4,
        )


def _skip_harmful_hop(
    model: Model, learner: RFELearner, images: Tensor, features_before: Tensor, runtime: Runtime
) -> Model:
    """The model with the drift since the task before and what its retrospector leaves of it.

    A retrospector that adds to the drift is made to pass features through.
    """
    *_, previous, newest = model.tasks
    index, pixels = len(model.tasks) - 2, pixels_of(model)
    errors = [
        float(squared_error(features_of(learner, pixels, images, runtime, task), features_before))
        for task in (None, index)
    ]
    drifted, rectified = (rmse(error, features_before.numel()) for error in errors)
    if rectified > drifted:
        warnings.warn(
            f"features have drifted by {drifted:.3f} since {previous.name!r}, and the retrospector would make "
            f"that {rectified:.3f}: it is left out, and {previous.name!r} reads features as they are",
            stacklevel=4,
        )
        hop = learner.rfe.chain.retrospectors[index]
        assert isinstance(hop, GatedRetrospector)
        hop.pass_through()
        rectified = drifted
    return replace(model, tasks=(*model.tasks[:-1], replace(newest, drifted=drifted, rectified=rectified)))


def _percent(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)
