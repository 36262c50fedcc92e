"""The progress of a run: one bar per phase with loss, accuracy, images per second and the remaining time."""

from __future__ import annotations

from datetime import datetime
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from recollect.engine import Observer
from recollect.escaping import escape

LOG_SECONDS = 60.0


class ProgressBar(Observer):
    """A bar on a terminal; elsewhere lines with the time: one per task and phase, and one a minute in a phase."""

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
            disable=not console.is_terminal,  # else it prints empty lines
        )
        self._task: TaskID | None = None
        self._loss: float | None = None
        self._accuracy: float | None = None
        self._started, self._num_images = 0.0, 0
        self._logged = 0.0

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def phase(self, title: str, num_images: int) -> None:
        is_new = self._task is None or self._progress.tasks[0].description != escape(title)
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(escape(title), total=num_images, title=self._title, figures="")
        self._started, self._num_images = perf_counter(), 0
        self._loss = self._accuracy = None
        if is_new:  # networks may read the same images one after the other
            self._log("begins")

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
            if perf_counter() - self._logged > LOG_SECONDS:
                self._log(f"{self._progress.tasks[0].percentage:.0f} %, {', '.join(figures)}")

    def _log(self, text: str) -> None:
        """A line about the phase, unless a bar shows it."""
        self._logged = perf_counter()
        if not self._console.is_terminal:
            self._print(f"{self._progress.tasks[0].description}: {text}")

    def _print(self, text: str) -> None:
        """A line, with the time where there is no terminal."""
        time = "" if self._console.is_terminal else f"{datetime.now():%Y-%m-%d %H:%M:%S} "
        self._console.print(f"{time}[bold]{self._title}[/] {text}", highlight=self._console.is_terminal)

    def event(self, kind: str, **fields: Any) -> None:
        if kind == "task":
            learned = slice(int(fields["task"]))  # with fixed heads there are also accuracies of future tasks
            accuracies = {name: [a for a in fields[name][learned] if a is not None] for name in ("til", "cil")}
            means = {name: sum(values) / len(values) for name, values in accuracies.items() if values}
            text = ", ".join(f"{name.upper()} {mean:.1f} %" for name, mean in means.items())
            self._print(f"task {fields['task']} learned: {text}")
        elif kind == "resumed":
            self._print(f"resumes after task {fields['tasks']}")
