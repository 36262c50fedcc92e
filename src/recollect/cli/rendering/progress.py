"""The progress of a run: one bar per phase with loss, accuracy, images per second and the remaining time."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from recollect.engine import Observer
from recollect.escaping import escape


class ProgressBar(Observer):
    """A bar on a terminal; elsewhere one line per task."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = escape(title)
        self._progress = Progress(
            TextColumn("[bold]{task.fields[title]}[/] {task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._loss: float | None = None
        self._accuracy: float | None = None
        self._started, self._num_images = 0.0, 0

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def phase(self, title: str, num_images: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(escape(title), total=num_images, title=self._title, figures="")
        self._started, self._num_images = perf_counter(), 0
        self._loss = self._accuracy = None

    def advance(self, num_images: int) -> None:
        if self._task is not None:
            self._num_images += num_images
            self._progress.advance(self._task, num_images)

    def report(self, loss: float | None = None, accuracy: float | None = None) -> None:
        self._loss = self._loss if loss is None else loss
        self._accuracy = self._accuracy if accuracy is None else accuracy
        figures = [f"{self._num_images / (perf_counter() - self._started):,.0f} images/s"]
        if self._loss is not None:
            figures.insert(0, f"loss {self._loss:.3f}")
        if self._accuracy is not None:
            figures.insert(1, f"validation {self._accuracy:.1f} %")
        if self._task is not None:
            self._progress.update(self._task, figures=" · ".join(figures))

    def event(self, kind: str, **fields: Any) -> None:
        if kind == "task":
            learned = slice(int(fields["task"]))  # with fixed heads there are also accuracies of future tasks
            accuracies = {name: [a for a in fields[name][learned] if a is not None] for name in ("til", "cil")}
            means = {name: sum(values) / len(values) for name, values in accuracies.items() if values}
            text = ", ".join(f"{name.upper()} {mean:.1f} %" for name, mean in means.items())
            self._console.print(f"[bold]{self._title}[/] task {fields['task']} learned: {text}")
        elif kind == "resumed":
            self._console.print(f"[bold]{self._title}[/] resumes after task {fields['tasks']}")
