"""The one loop: task > phase > epoch > batch.

Everything random is keyed by (seed, task, phase, epoch, step, purpose), so all methods see the same images in the same
order for the same seed, and resuming at any step needs no generator state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from recollect.engine import checkpoint
from recollect.engine.evaluation import Accuracies, evaluate, measure_drift, original_features
from recollect.engine.fit import Fit
from recollect.engine.observer import Observer, track_reading
from recollect.engine.record import Record
from recollect.engine.runtime import Runtime
from recollect.engine.stop import StopRequest
from recollect.engine.training import Training
from recollect.engine.update import NonFiniteLossError
from recollect.errors import StoppedError, UserError
from recollect.methods import Learner
from recollect.metrics import on_principal_axes, shown_rows
from recollect.rng import Key
from recollect.streams import Split, Stream, Task, TaskData, TaskInfo

MISFITS = (RuntimeError, TypeError, KeyError, ValueError, AttributeError, IndexError)
EVALUATIONS = ("til", "cil", "til_without_chain", "task_prediction")


class UnderWay(NamedTuple):
    """A phase that was interrupted: its number within the task, and its state."""

    phase: int
    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


class Engine:
    """Teaches a stream to a learner and measures it after each task.

    `num_learned` is the starting state: the learner given has already learned so many of the stream's tasks.
    """

    def __init__(
        self,
        learner: Learner[Any],
        stream: Stream,
        training: Training,
        runtime: Runtime,
        seed: int,
        *,
        num_learned: int = 0,
        observer: Observer | None = None,
        checkpoints: Path | None = None,
        checkpoint_seconds: float = 300.0,
        drift: bool = False,
        run: str = "",
        stop: StopRequest | None = None,
    ) -> None:
        self.learner, self.stream, self.training, self.runtime = learner, stream, training, runtime
        self.key = Key(seed)
        self.num_learned = num_learned
        self.observer = observer or Observer()
        self.checkpoints, self.checkpoint_seconds = checkpoints, checkpoint_seconds
        self.drift = drift
        self.run_name, self.stop = run, stop or StopRequest()
        self.record = Record(environment=runtime.describe())
        self.originals: dict[int, Tensor] = {}
        assert not (drift and num_learned), "drift is measured from the first task on"

    def run(self) -> Record:
        """Learn all tasks, resuming from the last checkpoint where there is one."""
        try:
            with self.runtime.own_randomness():
                return self._run_all()
        finally:  # phases hold still what they do not train; whoever gave the backbone gets it as free as it was
            for parameter in self.learner.network.learnable():
                parameter.requires_grad_(True)

    def _run_all(self) -> Record:
        lessons = [self.stream.tasks] if self.learner.together else [(task,) for task in self.stream.tasks]
        self.runtime.place(self.learner)
        with self.runtime.world.main_first():
            done, under_way = self._resume(lessons)
        self._compare("from the start")
        if not done and under_way is None and self.learner.network.fixed_heads:
            self.record.at_start = dict(
                evaluate(self.learner, self.stream.tasks, "test", self.stream.pixels, self.runtime)
            )
        for lesson in lessons[done:]:
            self._learn(lesson, done, under_way)
            self._measure(lesson)
            under_way = None
            done += 1
            if done == len(lessons):
                accuracies = evaluate(self.learner, self.stream.tasks, "validation", self.stream.pixels, self.runtime)
                self.record.add_validation(accuracies)
            self._save(done)
            self._remove_dropped_samples(done)
            self._report_task(lesson)
            asked = self._asked_to_stop()
            if asked:
                raise StoppedError(asked)
        return self.record

    def _remove_dropped_samples(self, done: int) -> None:
        """Older checkpoints may hold samples that memories have dropped since: they go before the task has ended."""
        if self.checkpoints is not None and self.learner.memories() and self.runtime.world.is_main:
            checkpoint.keep_only(self.checkpoints, f"task-{done:03}")

    def _report_task(self, lesson: Sequence[Task]) -> None:
        row = {name: self.record.matrices[name][-1] for name in EVALUATIONS}
        self.observer.event("task", task=lesson[-1].info.index + 1, **row)

    def _learn(self, lesson: Sequence[Task], done: int, under_way: UnderWay | None) -> None:
        last = lesson[-1].info
        if under_way is None:
            self._begin(lesson)
        train = Split.concatenate([task.train for task in lesson])
        validation = Split.concatenate([task.validation for task in lesson])
        key = self.key / "task" / last.index
        if under_way is None:
            self._show(lesson, key / "prepare", self.learner.prepare_task)
        number = -1
        for number, phase in enumerate(self.learner.phases(last)):
            if under_way is None or number >= under_way.phase:
                title = f"task {last.index + 1} · {phase.name}"
                fit = Fit(
                    self.learner,
                    phase,
                    train,
                    validation,
                    pixels=self.stream.pixels,
                    training=self.training,
                    runtime=self.runtime,
                    key=key / phase.name,
                    title=title,
                )
                if under_way is not None and number == under_way.phase:
                    try:
                        fit.load(under_way.tensors, under_way.values)
                    except MISFITS as error:
                        raise self._misfit() from error
                self._run(fit, done, number)
        if under_way is not None and not 0 <= under_way.phase <= number:
            raise self._misfit()
        self._show(lesson, key / "end", self.learner.end_task)

    def _show(self, lesson: Sequence[Task], key: Key, see: Callable[[TaskInfo, TaskData], None]) -> None:
        """Let the learner see each task's images as they are; all ranks then have the main one's state."""
        started = perf_counter()
        self.learner.eval()
        for task in lesson:
            track = partial(track_reading, self.observer, f"task {task.info.index + 1} · reading images")
            data = TaskData.of(task.train, self.stream.pixels, self.runtime.device, key / task.info.index, track)
            with self.runtime.autocast():
                see(task.info, data)
        self.runtime.world.broadcast_(self.learner.state_dict().values())
        self.record.spend("statistics", started)

    def _begin(self, lesson: Sequence[Task]) -> None:
        for task in lesson:
            self.learner.begin_task(task.info)
        self.runtime.place(self.learner)

    def _run(self, fit: Fit, done: int, number: int) -> None:
        """Train a phase, saving where it stands from time to time and when it ends."""
        started = saved = perf_counter()

        def save() -> None:
            nonlocal started, saved
            self.record.spend(fit.phase.name, started)
            started = perf_counter()
            self._save(done, number, fit)
            saved = perf_counter()

        def after_step(num_images: int) -> None:
            self.record.num_images += num_images
            asked = self._asked_to_stop()
            if perf_counter() - saved > self.checkpoint_seconds or asked:
                save()
            if asked:
                raise StoppedError(asked)

        try:
            fit.run(self.observer, after_step)
        except NonFiniteLossError as error:
            newest = checkpoint.newest(self.checkpoints) if self.checkpoints else None
            good = f"the last good checkpoint is {newest}" if newest else "there is no earlier checkpoint"
            raise NonFiniteLossError(f"{error}; {good}. Lower learning_rate, or use --precision fp32") from error
        self._compare(f"after {fit.title}")
        save()

    def _asked_to_stop(self) -> int:
        """The signal that any rank received; 0 for none."""
        return self.runtime.world.all_reduce_max(self.stop.number or 0)

    def _compare(self, when: str) -> None:
        """Replicas are the same bits; a method whose replicas are not cannot run on several processes."""
        differ = self.runtime.world.find_differences(self.learner.state_dict())
        if differ:
            raise UserError(
                f"the processes' copies of {type(self.learner).__name__} differ {when}, in {', '.join(differ[:3])}: "
                "state that a step moves has to come from update() or a Memory; run it in one process"
            )

    def _measure(self, lesson: Sequence[Task]) -> None:
        started = perf_counter()
        now = lesson[-1].info.index
        tasks = self.stream.tasks
        readable = len(tasks) if self.learner.network.fixed_heads else now + 1
        accuracies: Accuracies = evaluate(self.learner, tasks[:readable], "test", self.stream.pixels, self.runtime)
        unread: list[float | None] = [None] * (len(tasks) - readable)
        for name in EVALUATIONS:
            matrix = self.record.matrices.setdefault(name, [])
            matrix += [[None] * len(tasks) for _ in range(now - len(matrix))]
            matrix.append([*accuracies[name], *unread])
        if self.drift:
            self._measure_drift(lesson, now)
        self.record.spend("evaluate", started)

    def _measure_drift(self, lesson: Sequence[Task], now: int) -> None:
        tasks, pixels = self.stream.tasks, self.stream.pixels
        record = self.record
        for task in lesson:
            original = original_features(self.learner, task, pixels, self.runtime)
            self.originals[task.info.index] = original
            shown = on_principal_axes(original, original[shown_rows(len(original))]) if len(original) else []
            record.scatter.append({"original": shown, "drifted": [], "rectified": []})
        drifts = [measure_drift(self.learner, tasks[j], self.originals[j], pixels, self.runtime) for j in range(now)]
        record.add_drift(drifts, len(tasks))

    def _save(self, done: int, number: int = 0, fit: Fit | None = None) -> None:
        """Save the state after `done` lessons or, within the next one, inside a phase."""
        if self.checkpoints is None or not self.runtime.world.is_main:
            return
        tensors = {f"learner.{name}": tensor for name, tensor in self.learner.state_dict().items()}
        tensors |= {f"drift.{task}": original for task, original in self.originals.items()}
        position: dict[str, Any] = {"lessons": done}
        name = f"task-{done:03}"
        if fit is not None:
            moments, values = fit.state()
            tensors |= {f"fit.{name}": tensor for name, tensor in moments.items()}
            position |= {"phase": number, "values": values}
            name += f".phase-{number}.epoch-{fit.epoch:04}.step-{fit.step:06}"
        state = {"position": position, "record": vars(self.record)}
        path = checkpoint.save(self.checkpoints, name, tensors, state, self.run_name)
        self.observer.event("checkpoint", path=path.name)

    def _resume(self, lessons: Sequence[Sequence[Task]]) -> tuple[int, UnderWay | None]:
        """Take the newest checkpoint's state; returns the lessons done and what was under way."""
        loaded = checkpoint.load_latest(self.checkpoints, self.run_name) if self.checkpoints else None
        if loaded is None:
            return self.num_learned, None
        tensors, state = loaded
        try:
            position = state["position"]
            done, inside = int(position["lessons"]), "phase" in position
            if not self.num_learned <= done <= len(lessons) - inside:
                raise self._misfit()
            for lesson in lessons[self.num_learned : done + inside]:
                self._begin(lesson)
            parts: dict[str, dict[str, Tensor]] = {"learner": {}, "drift": {}, "fit": {}}
            for name, tensor in tensors.items():
                part, _, rest = name.partition(".")
                parts[part][rest] = tensor
            self.learner.load_state_dict(parts["learner"])
            self.originals = {int(task): original for task, original in parts["drift"].items()}
            self.record = Record.from_json(state["record"], num_tasks=len(self.stream.tasks))
            if self.drift and len(self.originals) < sum(map(len, lessons[:done])):
                raise self._misfit()
            under_way = UnderWay(int(position["phase"]), parts["fit"], position["values"]) if inside else None
        except MISFITS as error:
            raise self._misfit() from error
        if done and not inside:  # a crash may have come between the two
            self._remove_dropped_samples(done)
        self._report_changes(done)
        return done, under_way

    def _misfit(self) -> UserError:
        return UserError(f"the checkpoint in {self.checkpoints} does not fit this run; remove it to start over")

    def _report_changes(self, done: int) -> None:
        before, now = self.record.environment, self.runtime.describe()
        changed = {key: [value, now.get(key)] for key, value in before.items() if value != now.get(key)}
        self.observer.event("resumed", tasks=done, changed=changed)
        if changed:
            what = ", ".join(f"{key} was {was} and is {value}" for key, (was, value) in changed.items())
            warnings.warn(f"resuming in another environment, so not to the same bits: {what}", stacklevel=2)
        self.record.environment = now
