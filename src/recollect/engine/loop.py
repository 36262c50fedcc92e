"""The one loop: task > phase > epoch > batch.

Everything random is keyed by (seed, task, phase, epoch, step, purpose), so all methods see the same images in the same
order for the same seed, and going on after a task needs no generator state.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from recollect.engine import checkpoint
from recollect.engine.evaluation import Accuracies, evaluate, measure_drift, original_features, plain_batches
from recollect.engine.observer import Observer
from recollect.engine.runtime import Runtime
from recollect.engine.update import NonFiniteLossError, Optimiser, Plateau
from recollect.errors import UserError
from recollect.methods import Learner, Phase
from recollect.rng import Key
from recollect.streams import Batch, Split, Stream, Task, TaskData

REPORT_EVERY_SECONDS = 1.0
EVALUATIONS = ("til", "cil", "til_without_chain")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How every phase trains; a phase brings its own epochs and learning rate."""

    epochs: int = 40
    """Epochs of each task."""
    learning_rate: float = 5e-4
    """Adam's learning rate at the start of each task."""
    batch_size: int = 32
    """Images a step."""
    patience: int = 3
    """Epochs without a better validation loss before the learning rate falls."""
    factor: float = 0.1
    """What the learning rate is then multiplied by."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_rate <= 0 or not 0 < self.factor <= 1:
            raise UserError(
                f"learning_rate must be positive and factor in (0, 1], got {self.learning_rate}, {self.factor}"
            )


@dataclass
class Record:
    """What has been measured so far; plain numbers, saved with every checkpoint."""

    matrices: dict[str, list[list[float | None]]] = field(default_factory=dict)
    at_start: dict[str, list[float | None]] = field(default_factory=dict)
    drifted: list[list[float | None]] = field(default_factory=list)
    rectified: list[list[float | None]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    num_images: int = 0
    validation: dict[str, float | None] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def spend(self, what: str, since: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + perf_counter() - since


class Engine:
    """Teaches a stream to a learner and measures it after each task."""

    def __init__(
        self,
        learner: Learner[Any],
        stream: Stream,
        training: Training,
        runtime: Runtime,
        seed: int,
        *,
        observer: Observer | None = None,
        checkpoints: Path | None = None,
        drift: bool = False,
    ) -> None:
        self.learner, self.stream, self.training, self.runtime = learner, stream, training, runtime
        self.key = Key(seed)
        self.observer = observer or Observer()
        self.checkpoints = checkpoints
        self.drift = drift
        self.record = Record(environment=runtime.describe())
        self.originals: dict[int, Tensor] = {}

    def run(self) -> Record:
        """Learn all tasks, going on after the last checkpoint where there is one."""
        lessons = [self.stream.tasks] if self.learner.together else [(task,) for task in self.stream.tasks]
        self.learner.to(self.runtime.device)
        done = self._resume(lessons)
        if not done and self.learner.network.fixed_heads:
            self.record.at_start = dict(
                evaluate(self.learner, self.stream.tasks, "test", self.stream.pixels, self.runtime)
            )
        for lesson in lessons[done:]:
            self._learn(lesson)
            self._measure(lesson)
            done += 1
            if done == len(lessons):
                found = evaluate(self.learner, self.stream.tasks, "validation", self.stream.pixels, self.runtime)
                self.record.validation = {name: _mean_of_known(found[name]) for name in ("til", "cil")}
            self._save(done)
        return self.record

    def _learn(self, lesson: Sequence[Task]) -> None:
        last = lesson[-1].info
        for task in lesson:
            self.learner.begin_task(task.info)
        self.learner.to(self.runtime.device)
        train = Split.concatenate([task.train for task in lesson])
        validation = Split.concatenate([task.validation for task in lesson])
        key = self.key / "task" / last.index
        for phase in self.learner.phases(last):
            started = perf_counter()
            self._train(phase, train, validation, key / phase.name, f"task {last.index + 1} · {phase.name}")
            self.record.spend(phase.name, started)
        self.learner.eval()
        for task in lesson:
            with self.runtime.autocast():
                data = TaskData(task.train, self.stream.pixels, self.runtime.device, 256, key / "end" / task.info.index)
                self.learner.end_task(task.info, data)

    def _train(self, phase: Phase, train: Split, validation: Split, key: Key, title: str) -> None:
        chunks = torch.arange(len(train)).split(self.training.batch_size)
        num_steps = len(chunks) - (len(chunks) > 1 and len(chunks[-1]) == 1)  # BatchNorm cannot take a single image
        if not len(validation):
            warnings.warn("no validation images: the learning rate watches the training loss instead", stacklevel=2)
        plateau = Plateau(patience=self.training.patience, factor=self.training.factor)
        update = Optimiser(self.learner, phase, plateau, num_steps, self.runtime.device)
        self.observer.phase(title, phase.schedule.epochs * len(train))
        for epoch in range(phase.schedule.epochs):
            started = perf_counter()
            try:
                loss = self._epoch(phase, train, update, num_steps, key / epoch)
                losses, accuracy = self._validate(phase, validation, loss, update.names)
                update.check(losses)
            except NonFiniteLossError as error:
                raise NonFiniteLossError(
                    f"{error} of {title}, epoch {epoch + 1}; {self._last_good()}. Lower learning_rate, "
                    "or use --precision fp32"
                ) from error
            rates = update.end_epoch(losses)
            self.observer.report(loss, accuracy)
            self.observer.event(
                "epoch",
                phase=title,
                epoch=epoch + 1,
                loss=loss,
                validation=losses,
                accuracy=accuracy,
                learning_rate=rates,
                seconds=perf_counter() - started,
            )

    def _epoch(self, phase: Phase, train: Split, update: Optimiser, num_steps: int, key: Key) -> float:
        self.learner.eval()
        for module in phase.training:
            module.train()
        order = torch.randperm(len(train), generator=(key / "order").generator())
        update.begin_epoch()
        reported = perf_counter()
        for step, positions in enumerate(order.split(self.training.batch_size)[:num_steps]):
            batch = self._batch(train, positions, key / step)
            batch.key.seed_layers()
            with self.runtime.autocast():
                phase.step(batch, update)
            self.record.num_images += len(positions)
            self.observer.advance(len(positions))
            if perf_counter() - reported > REPORT_EVERY_SECONDS:
                self.observer.report(update.mean_loss())
                reported = perf_counter()
        return update.mean_loss()

    def _batch(self, split: Split, positions: Tensor, key: Key) -> Batch:
        images, labels = split.take(positions)
        device, pixels = self.runtime.device, self.stream.pixels
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        x = pixels.augmented(images, (key / "view").generator())
        return Batch(images, x, labels, pixels, key)

    @torch.no_grad()
    def _validate(
        self, phase: Phase, split: Split, training_loss: float, groups: Sequence[str]
    ) -> tuple[dict[str, float], float | None]:
        """Mean validation loss of each group and accuracy; without validation images the training loss is watched."""
        if not len(split):
            return dict.fromkeys(groups, training_loss), None
        self.learner.eval()
        totals = torch.zeros(len(groups) + 1, device=self.runtime.device)
        has_accuracy = False
        for x, y in plain_batches(split, self.stream.pixels, self.runtime):
            with self.runtime.autocast():
                found = phase.validate(Batch(x, x, y, self.stream.pixels, self.key))
            for index, name in enumerate(groups):
                totals[index] += found.losses[name] * len(y)
            if found.num_correct is not None:
                has_accuracy = True
                totals[-1] += found.num_correct
        *losses, right = (totals / len(split)).tolist()
        return dict(zip(groups, losses, strict=True)), 100 * right if has_accuracy else None

    def _measure(self, lesson: Sequence[Task]) -> None:
        started = perf_counter()
        now = lesson[-1].info.index
        tasks = self.stream.tasks
        readable = len(tasks) if self.learner.network.fixed_heads else now + 1
        found: Accuracies = evaluate(self.learner, tasks[:readable], "test", self.stream.pixels, self.runtime)
        unread: list[float | None] = [None] * (len(tasks) - readable)
        for name in EVALUATIONS:
            matrix = self.record.matrices.setdefault(name, [])
            matrix += [[None] * len(tasks) for _ in range(now - len(matrix))]
            matrix.append([*found[name], *unread])
        if self.drift:
            self._measure_drift(lesson, now)
        self.record.spend("evaluate", started)
        self.observer.event("task", task=now + 1, **{name: found[name] for name in EVALUATIONS})

    def _measure_drift(self, lesson: Sequence[Task], now: int) -> None:
        tasks, pixels = self.stream.tasks, self.stream.pixels
        for task in lesson:
            self.originals[task.info.index] = original_features(self.learner, task, pixels, self.runtime)
        pairs = [measure_drift(self.learner, tasks[j], self.originals[j], pixels, self.runtime) for j in range(now)]
        for kept, row in ((self.record.drifted, [p[0] for p in pairs]), (self.record.rectified, [p[1] for p in pairs])):
            kept += [[None] * len(tasks) for _ in range(now - len(kept))]
            kept.append([*row, *[None] * (len(tasks) - len(row))])

    def _save(self, done: int) -> None:
        if self.checkpoints is None:
            return
        tensors = dict(self.learner.state_dict())
        tensors |= {f"drift.{task}": original for task, original in self.originals.items()}
        path = checkpoint.save(self.checkpoints, done, tensors, vars(self.record))
        self.observer.event("checkpoint", path=path.name)

    def _resume(self, lessons: Sequence[Sequence[Task]]) -> int:
        found = checkpoint.load_latest(self.checkpoints) if self.checkpoints else None
        if found is None:
            return 0
        done, tensors, record = found
        for lesson in lessons[:done]:
            for task in lesson:
                self.learner.begin_task(task.info)
        self.learner.to(self.runtime.device)
        names = [name for name in tensors if name.startswith("drift.")]
        self.originals = {int(name.split(".")[1]): tensors.pop(name) for name in names}
        try:
            self.learner.load_state_dict(tensors)
            self.record = Record(**record)
        except (RuntimeError, TypeError) as error:
            raise UserError(
                f"the checkpoint in {self.checkpoints} does not fit this run; start anew with --force"
            ) from error
        now = self.runtime.describe()
        changed = {
            key: [before, now.get(key)] for key, before in self.record.environment.items() if before != now.get(key)
        }
        self.observer.event("resumed", tasks=done, changed=changed)
        if changed:
            what = ", ".join(f"{key} was {before} and is {after}" for key, (before, after) in changed.items())
            warnings.warn(f"going on under another environment, so not to the same bits: {what}", stacklevel=2)
        self.record.environment = now
        return done

    def _last_good(self) -> str:
        found = sorted(self.checkpoints.glob("task-*")) if self.checkpoints else []
        return f"the last good checkpoint is {found[-1]}" if found else "there is no earlier checkpoint"


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
