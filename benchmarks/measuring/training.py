"""Training: a bare PyTorch loop, U, and pieces of every method's training.

U has ResNet-18 at full width, 32x32, batch 32, Adam, fp32, tensors in memory, no augmentation, no bookkeeping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from measuring.timing import Work, report_progress, time_in_turn, time_with_unit
from recollect.engine import Observer, Runtime, Training
from recollect.engine.fit import Fit
from recollect.methods import Learner, Phase, Schedule, build_learner, methods
from recollect.nets.resnet import ResNet18
from recollect.report.speed import MEMORY, STAGE_2, STAGED, speed_ratios
from recollect.rng import Key
from recollect.streams import Split, Stream, TaskData, TaskInfo, stream_from_tensors

BATCH, STEPS, ROUNDS = 32, 4, 7
TASK_NUMBERS = (2, 5, 10, 20)
PLAIN = ("finetune", "er", "derpp", "er-ace", "agem", "er-mkd", "tamil", "cls-er")


def bare_loop() -> Work:
    """U: a plain training loop."""
    torch.manual_seed(0)
    device = Runtime.choose("auto").device
    network = nn.Sequential(ResNet18(3, 64), nn.Linear(512, 20)).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-4)
    x, y = torch.randn(STEPS, BATCH, 3, 32, 32, device=device), torch.randint(0, 20, (STEPS, BATCH), device=device)

    def work() -> None:
        for step in range(STEPS):
            optimiser.zero_grad()
            F.cross_entropy(network(x[step]), y[step]).backward()
            optimiser.step()

    return work


def random_stream(num_tasks: int, per_task: int = BATCH * STEPS) -> Stream:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(20 * num_tasks).repeat_interleave(-(-per_task // 20))
    images = torch.randint(0, 256, (len(labels), 3, 32, 32), generator=rng, dtype=torch.uint8)
    names = [[str(20 * task + c) for c in range(20)] for task in range(num_tasks)]
    return stream_from_tensors(images, labels, images[:20], labels[:20], tasks=names, validation=0.0)


class Bench:
    """A full-width learner at task `number` (1-based), and pieces of its training to be timed."""

    def __init__(self, method: str, number: int = 2, **options: Any) -> None:
        self.runtime = Runtime.choose("auto", "auto")
        self.stream = random_stream(1)
        info = self.stream.tasks[0].info
        row = methods()[method]
        names = {field.name for field in dataclasses.fields(row.config)}
        config = dataclasses.replace(
            row.config, **{k: v for k, v in ({"memory": MEMORY} | options).items() if k in names}
        )
        key = Key(0)
        with key.initialising():
            backbone = ResNet18(3, 64)
        self.learner: Learner[Any] = build_learner(row.learner, config, backbone, (3, 32, 32), Schedule(1, 5e-4), key)
        self.images = self.stream.tasks[0].train.images
        for index in range(number):
            self.info = TaskInfo(index, info.name, info.class_names)
            self.learner.begin_task(self.info)
            self.runtime.place(self.learner)
            if index < number - 1:
                if index == 0 and number == 2:  # fill the memories that are written step by step
                    self.fit(self.phase()).run(Observer(), lambda _num: None)
                split = self.split(index, MEMORY)
                self.learner.eval()
                with self.runtime.autocast():
                    self.learner.end_task(self.info, TaskData(split, self.stream.pixels, self.runtime.device, 256, key))

    def split(self, index: int, num: int = BATCH * STEPS) -> Split:
        rows = torch.arange(num) % len(self.images)
        return Split(self.images, rows, 20 * index + torch.arange(num) % 20)

    def phase(self, name: str = "fit", epochs: int = 1) -> Phase:
        phase = next(phase for phase in self.learner.phases(self.info) if phase.name == name)
        return dataclasses.replace(phase, schedule=Schedule(epochs, phase.schedule.learning_rate))

    def fit(self, phase: Phase, split: Split | None = None) -> Fit:
        split = split or self.split(self.info.index)
        return Fit(self.learner, phase, split, Split(self.images, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
                   pixels=self.stream.pixels, training=Training(batch_size=BATCH), runtime=self.runtime, key=Key(1), title="bench")  # fmt: skip

    def work(self, name: str = "fit", epochs: int = 1) -> Work:
        """A whole phase, which can be repeated."""
        fit = self.fit(self.phase(name, epochs))

        def work() -> None:
            fit.epoch = 0
            fit.run(Observer(), lambda _num: None)

        return work


def measure_training(
    plain: Sequence[str] = PLAIN, staged: Sequence[str] = STAGED, num_rounds: int = ROUNDS
) -> dict[str, Any]:
    """Images per second of methods with one stage and with two, over U's."""
    works = {name: Bench(name).work() for name in plain}
    for name in staged:
        works[f"{name}, stage 1"] = Bench(name).work()
        for part, epochs in STAGE_2.items():
            works[f"{name}, {part}"] = Bench(name, views=1).work("retrospect", epochs)
    report_progress(f"training, {len(works)} rows")
    times, unit_times = time_with_unit(bare_loop(), works, num_rounds)
    return {
        "unit_images_per_second": median(BATCH * STEPS / seconds for row in unit_times.values() for seconds in row),
        "seconds": times,
        "unit_seconds": unit_times,
        "ratio": {
            name: {"median": median(ratios), "low": min(ratios), "high": max(ratios)}
            for name, ratios in speed_ratios(times, unit_times).items()
        },
    }


def measure_task_growth() -> list[dict[str, Any]]:
    """Time of training steps of each stage, by the number of the task."""
    works: dict[str, Work] = {}
    for number in TASK_NUMBERS:
        works[f"rfe|fit|{number}"] = Bench("rfe", number).work()
        for name in ("rfe", "rfe-b"):
            works[f"{name}|retrospect|{number}"] = Bench(name, number).work("retrospect", epochs=16)
    report_progress("training time against the task's number")
    times = time_in_turn(works, 3)
    return [
        {"method": method, "stage": stage, "task": int(number), "seconds": median(times[name])}
        for name in works for method, stage, number in [name.split("|")]
    ]  # fmt: skip
