"""Learning a task from labelled images: the engine, on a stream whose earlier tasks are already learned."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.deploy.data import Labelled
from recollect.deploy.measuring import measure_drift, measure_validation
from recollect.deploy.model import VALIDATION_SHARE, LearnedTask, Model, Settings
from recollect.deploy.reader import (
    Reader,
    compute_features,
    is_pretrained,
    make_pixels,
    new_learner,
    restore_learner,
    task_infos,
)
from recollect.device import to_host
from recollect.engine import Engine, Observer, Runtime, StopRequest, Training, catch_signals, checkpoint
from recollect.errors import UserError
from recollect.names import check_task_name
from recollect.rng import Key
from recollect.streams import OMITTED, Split, Stream, Task, TaskData, TaskInfo
from recollect.streams.build import channel_statistics

MAX_DRIFT_IMAGES = 2_000
MIN_IMAGES, MIN_SCRATCH_IMAGES = 10, 300  # per class, below which a warning is due; the latter without pretraining
MAX_IMBALANCE = 5.0  # images in the largest class per image in the smallest


def learn_task(
    model: Model | None,
    settings: Settings,
    data: Labelled,
    name: str,
    runtime: Runtime,
    work: Path,
    backbone: nn.Module | None = None,
    *,
    adapt: bool = True,
    checkpoint_seconds: float = 300.0,
    observer: Observer | None = None,
    heed_signals: bool = False,
    seconds: float = 0.0,
) -> Model:
    """The model after one more task; an interrupted learn of the same data resumes from its checkpoints in `work`.

    Without `adapt` the backbone stays as it is, and the task gets a head and statistics of its features. `seconds`
    limits the time for training; 0 is no limit. It is no part of what makes two learns the same.
    """
    started = perf_counter()
    name = check_task_name(name)
    past = model.tasks if model else ()
    if name in {task.name for task in past}:
        raise already_learned(name)
    if len(data.images) < 2:
        raise UserError(f"a single image (of {data.class_names[0]!r}) is not enough to learn from; add more")
    pretrained = is_pretrained(settings, backbone)
    from_scratch = model is None and backbone is None and not pretrained
    warn_about(data, is_first=not past and not pretrained, from_scratch=from_scratch)
    warn_about_spelling(data.class_names, [name for task in past for name in task.classes])
    train, validation = _split(data, settings.seed, len(past), sum(len(task.units) for task in past))
    full_precision = replace(runtime, precision="fp32")  # as `predict` computes
    if model is None:
        learner = new_learner(settings, backbone, settings.patience, restored=False)
        mean, std = getattr(learner.network.backbone, "normalisation", None) or channel_statistics(train)
        before = Model(settings, mean, std, (), 1.0, {})
    else:
        learner, before = restore_learner(model, runtime, backbone, settings.patience), model
    learner.adapts = adapt
    learner.setup = replace(learner.setup, schedule=replace(learner.setup.schedule, seconds=seconds))
    pixels = make_pixels(before)
    images = _some_of(validation) if past and adapt else None  # by which drift is measured
    features_before = compute_features(learner, images, pixels, full_precision) if images is not None else None
    identity = identify_learn(settings, model, data, name, backbone, adapt=adapt)
    if checkpoint.newest(work / identity) is None:
        _remove_other_checkpoints(work)
    task = TaskInfo(len(past), name, data.class_names)
    stream = _make_stream(before, data, task, train, validation if adapt else _none_of(data))
    training = Training(
        epochs=settings.epochs, learning_rate=settings.learning_rate, batch_size=settings.batch_size,
        schedule="cosine" if learner.is_gentle else "plateau",
    )  # fmt: skip
    with catch_signals() if heed_signals else nullcontext(StopRequest()) as stop:
        engine = Engine(
            learner, stream, training, runtime, settings.seed, num_learned=len(past), observer=observer,
            checkpoints=work / identity, checkpoint_seconds=checkpoint_seconds, run=identity, stop=stop,
        )  # fmt: skip
        engine.run()
    learned = LearnedTask(
        name=name, classes=data.class_names, images=data.count(), accuracy=None, across=None, temperature=1.0,
        drifted=None, rectified=None, learned=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0, learn=identity, adapted=adapt,
    )  # fmt: skip
    earlier_tasks = (replace(task, now=None) for task in past)  # that was before this task
    after = replace(before, tasks=(*earlier_tasks, learned), typical=None)
    if len(validation):
        if images is not None and features_before is not None:
            after = measure_drift(after, learner, images, features_before, full_precision)
        held_out = TaskData.of(validation, pixels, runtime.device, Key(settings.seed))
        after = measure_validation(after, Reader(after, learner, full_precision), held_out)
    training_seconds = sum(engine.record.seconds.values())  # also before an interruption
    *earlier, newest = after.tasks
    newest = replace(newest, seconds=max(training_seconds, perf_counter() - started))
    after = replace(after, tasks=(*earlier, newest))
    return replace(after, tensors={name: to_host(tensor) for name, tensor in learner.deployable_state().items()})


def already_learned(task: str, *, has_before: bool = True) -> UserError:
    """The error; without the version before the task it can neither be compared, nor adapted, nor undone."""
    remedy = (
        ", or first roll back to the version before it"
        if has_before
        else "; the version before it was deleted, so it cannot be learned again"
    )
    return UserError(f"the task {task!r} is already learned; use a new task name for new images{remedy}")


def _make_stream(before: Model, data: Labelled, task: TaskInfo, train: Split, validation: Split) -> Stream:
    """The new task after the learned ones, whose images are gone; what the engine would test is measured later."""
    empty = _none_of(data)
    learned = [Task(info, empty, empty, empty) for info in task_infos(before)]
    shape = (3, before.settings.image_size, before.settings.image_size)
    tasks = (*learned, Task(task, train, validation, empty))
    return Stream("images", tasks, make_pixels(before), shape, data.digest)


def _none_of(data: Labelled) -> Split:
    return Split(data.images, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def _some_of(validation: Split) -> Tensor:
    """At most MAX_DRIFT_IMAGES images, of all classes alike."""
    step = max(1, -(-len(validation) // MAX_DRIFT_IMAGES))
    return validation.take(torch.arange(0, len(validation), step))[0]


def _remove_other_checkpoints(work: Path) -> None:
    """Remove the checkpoints of interrupted learns that are not resumed, and nothing else."""
    for path in sorted(work.glob("*")):
        if re.fullmatch(r"[0-9a-f]{32}", path.name) and path.is_dir():
            warnings.warn(
                f"{path} belongs to an interrupted learn of other images, another name or another model; removed",
                stacklevel=3,
            )
            shutil.rmtree(path)


def warn_about(data: Labelled, *, is_first: bool, from_scratch: bool = False) -> None:
    """Warn about too few images, unequal classes, and a single class from which features would have to be learned."""
    counts = data.count()
    few = [name for name, number in counts.items() if number < MIN_IMAGES]
    if not any(_num_validation(number) for number in counts.values()):
        warnings.warn(
            "too few images for a validation split: nothing is measured for this task, and calibration is unchanged",
            stacklevel=3,
        )
    smallest = min(counts, key=counts.__getitem__)
    if from_scratch and counts[smallest] < MIN_SCRATCH_IMAGES:
        warnings.warn(
            f"training from scratch with {counts[smallest]} images of {smallest!r}: below about {MIN_SCRATCH_IMAGES} "
            "per class accuracy is usually low; the default backbone is pretrained and needs far fewer",
            stacklevel=3,
        )
    if few:
        listed = ", ".join(f"{name!r} ({counts[name]})" for name in few[:5])
        warnings.warn(f"fewer than {MIN_IMAGES} images of {listed}: accuracy on them will be low", stacklevel=3)
    largest = max(counts, key=counts.__getitem__)
    if counts[largest] > MAX_IMBALANCE * counts[smallest]:
        sizes = f"{counts[largest]} images of {largest!r} and {counts[smallest]} of {smallest!r}"
        warnings.warn(f"{sizes}: the model will favour the former", stacklevel=3)
    if is_first and len(counts) == 1:
        warnings.warn(
            f"the first task has a single class ({data.class_names[0]!r}), from which a network without pretrained "
            "weights learns nothing; start with several classes, or with a pretrained backbone",
            stacklevel=3,
        )


def warn_about_spelling(new: Sequence[str], known: Sequence[str]) -> None:
    """Warn about classes that differ from others only in capitalisation or spaces, and numbers among names."""
    if known and all(name.isdecimal() for name in new) and not any(name.isdecimal() for name in known):
        warnings.warn(
            f"the new classes are numbers ({new[0]!r}), those of the model are names ({known[0]!r}); if your labels "
            "are indices, pass the names of the classes instead",
            stacklevel=3,
        )
    spellings = {"".join(name.casefold().split()): name for name in known}
    for name in (name for name in new if name not in known):
        other = spellings.setdefault("".join(name.casefold().split()), name)
        if other != name:
            warnings.warn(
                f"{name!r} and {other!r} are learned as different classes; if they are the same, merge them afterwards "
                f"(recollect merge), or rename the folder and learn it again",
                stacklevel=3,
            )


def _num_validation(num_images: int) -> int:
    """How many of a class's images are held out for validation."""
    return min(round(VALIDATION_SHARE * num_images), num_images - 1)


def _split(data: Labelled, seed: int, task: int, first_unit: int) -> tuple[Split, Split]:
    """Training and validation images, drawn per class; labels are indices of the classifier's units."""
    train, validation = [], []
    for label in range(len(data.class_names)):
        rows = (data.labels == label).nonzero()[:, 0]
        key = Key(seed) / "validation" / task / label
        rows = rows[torch.randperm(len(rows), generator=key.generator())]
        num = _num_validation(len(rows))
        validation.append(rows[:num])
        train.append(rows[num:])
    parts = [torch.cat(rows).sort().values for rows in (train, validation)]
    first, second = (Split(data.images, rows, data.labels[rows] + first_unit) for rows in parts)
    return first, second


def identify_learn(
    settings: Settings,
    model: Model | None,
    data: Labelled,
    name: str,
    backbone: nn.Module | None = None,
    *,
    adapt: bool = True,
) -> str:
    """A hash of everything a learn depends on, so that only the same learn resumes from its checkpoints."""
    trainable = [parameter.requires_grad for parameter in backbone.parameters()] if backbone else []
    edits = [edit for task in model.tasks for edit in task.edits] if model else []
    values = [_identified(settings), name, data.digest, len(model.tasks) if model else 0, *trainable, adapt, *edits]
    return identify(values, model.tensors if model else backbone.state_dict() if backbone else {})


def _identified(settings: Settings) -> dict[str, Any]:
    """Without newer settings at their defaults, so that a learn of an earlier version can be repeated."""
    added = {field.name: field.default for field in fields(settings) if field.metadata == OMITTED}
    return {name: value for name, value in asdict(settings).items() if name not in added or value != added[name]}


def identify(values: list[Any], tensors: Mapping[str, Tensor]) -> str:
    """A hash of plain values and tensors."""
    digest = hashlib.sha256(json.dumps(values).encode())
    for key in sorted(tensors):
        digest.update(np.asarray(to_host(tensors[key]).contiguous().flatten().view(torch.uint8)).data)
    return digest.hexdigest()[:32]
