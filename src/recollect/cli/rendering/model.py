"""What the commands for model folders print."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from recollect.cli.console import print_text
from recollect.cli.rendering.progress import LOG_SECONDS, ProgressBar
from recollect.deploy.editing import Edited, Forgotten
from recollect.deploy.inspection import DamagedError
from recollect.deploy.model import VALIDATION_SHARE, Accuracies, Settings
from recollect.deploy.stages import LearnPlan, LearnResult
from recollect.engine import Runtime
from recollect.escaping import escape
from recollect.methods._rfe_config import RFEConfig
from recollect.sweeps.estimate import seconds_an_image

FIRST_TASK_COST = 1.4  # both stages of the first task, relative to plain training
LATER_TASK_COST = 2.0  # of later tasks, whose first stage also runs the previous network
READING_COST = 1 / 3  # of an image that is read and not trained on


class LearningProgress(ProgressBar):
    """The progress of reading images and of training them; the result is printed separately."""

    def __enter__(self) -> LearningProgress:
        return self  # the bar appears with the first phase, once the images have been read

    def track_files(self, paths: Iterable[Path], num: int) -> Iterable[Path]:
        """Show the progress of reading files."""
        if self._console.is_terminal:
            return track(paths, "reading images", num, console=self._console, transient=True)
        return self._log_files(paths, num)

    def _log_files(self, paths: Iterable[Path], num: int) -> Iterator[Path]:
        self._print(f"reading {num} files")
        logged = perf_counter()
        for done, path in enumerate(paths, 1):
            yield path
            if perf_counter() - logged > LOG_SECONDS:
                self._print(f"reading files: {100 * done / num:.0f} %")
                logged = perf_counter()

    def phase(self, title: str, num_images: int) -> None:
        self._progress.start()
        super().phase(title, num_images)

    def event(self, kind: str, **fields: Any) -> None:
        if kind == "resumed":
            self._print("resumes from its last checkpoint")


def print_estimate(console: Console, plan: LearnPlan, device: str, threads: int) -> None:
    """The images per class and about how long learning them will take."""
    listed = ", ".join(f"{escape(name)} {number}" for name, number in plan.num_images.items())
    duration = (
        f" Up to about [bold]{_estimate_minutes(plan, device, threads)} minutes[/]." if plan.stages.adapted else ""
    )
    console.print(f"{sum(plan.num_images.values())} images: {listed}.{duration}")


def _estimate_minutes(plan: LearnPlan, device: str, threads: int) -> str:
    settings = plan.settings
    shape = (3, settings.image_size, settings.image_size)
    runtime = Runtime.choose(device, settings.precision, threads)
    seconds = seconds_an_image(settings.backbone, settings.backbone_options, shape, runtime, settings.batch_size)
    training, statistics = (
        passes * seconds * sum(plan.num_images.values()) / 60
        for passes in _num_passes(settings, is_first=not plan.num_learned)
    )
    if plan.stages.seconds:
        training = min(training, plan.stages.seconds / 60)
    minutes = training + statistics
    return f"{minutes:.0f}" if minutes >= 2 else f"{max(minutes, 0.1):.1f}"


def _num_passes(settings: Settings, *, is_first: bool) -> tuple[float, float]:
    """How often plain training could see each image in the time that adaptation takes: to train, and for statistics."""
    if settings.form == "gated":
        return settings.epochs * (FIRST_TASK_COST if is_first else LATER_TASK_COST), 0.0
    training = settings.epochs * (1 if is_first else 1 + READING_COST)  # with the previous network
    views = RFEConfig().views
    statistics = READING_COST * (views if is_first else 2 * views + 1)  # of both networks, and one of the first
    return (1 - VALIDATION_SHARE) * training, (1 - VALIDATION_SHARE) * statistics


def print_learned(console: Console, folder: Path, result: LearnResult, seconds: float) -> None:
    """What a model has learned now, and how long the command took."""
    model, task = result.model, result.model.tasks[-1]
    name = f"[bold]{escape(task.name)}[/]"
    if result.was_learned:
        console.print(f"{name} was already learned from these images; that version is current.")
        return
    accuracy = ""
    if task.accuracy is not None and task.across is not None:
        accuracy = f" Validation accuracy {task.across:.1f} % (all classes)"
        if 1 < len(task.classes) < len(model.classes):
            accuracy += f", {task.accuracy:.1f} % (task known)"
        accuracy += "."
    known = f"{_count(len(model.classes), 'class', 'es')} in {_count(len(model.tasks), 'task')}"
    console.print(
        f"Learned {name} in {_show_seconds(seconds)}.{accuracy} "
        f"The model in [bold]{escape(str(folder))}[/] has {known} now and stores no images."
    )
    measured = None if task.across is None or task.accuracy is None else Accuracies(task.accuracy, task.across)
    if result.rejected is not None and measured is not None:
        console.print(
            f"{_show_change(measured, result.rejected)}, so the adapted model was discarded. To train it again and "
            "keep it anyway, add --force."
        )
    elif task.unadapted is not None and measured is not None:
        console.print(f"{_show_change(task.unadapted, measured)}.")
    elif not task.adapted:
        console.print(
            "The network itself was not changed. To train it on these images too, which takes minutes and is "
            "sometimes more accurate, run the same command with --adapt."
        )


def _show_change(before: Accuracies, after: Accuracies) -> str:
    """What adaptation did to the validation accuracy."""
    if before == after:
        return (
            f"Adaptation did not change the validation accuracy of {after.unknown:.1f} % (all classes) and "
            f"{after.known:.1f} % (task known)"
        )
    return (
        f"Adaptation changed the validation accuracy from {before.unknown:.1f} to {after.unknown:.1f} % (all classes) "
        f"and from {before.known:.1f} to {after.known:.1f} % (task known)"
    )


def _show_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def print_model(console: Console, folder: Path, about: Mapping[str, Any]) -> None:
    """The tasks of a model, its versions, and how new images compare with the newest task."""
    has_moved = any(task["drifted"] is not None for task in about["tasks"])
    estimates = ("est. accuracy now (all classes)",) if any(task["now"] for task in about["tasks"]) else ()
    drifts = ("drift", "residual drift") if has_moved else ()
    accuracies = ("val. accuracy (all classes)", "val. accuracy (task known)", *estimates)
    titles = ("task", "classes", "images", *accuracies, *drifts)
    table = Table(*titles, box=None, padding=(0, 2))
    for task in about["tasks"]:
        left_out = task["drifted"] is not None and task["drifted"] == task["rectified"]
        table.add_row(
            escape(task["name"]),
            ", ".join(escape(name) for name in task["classes"]) or "–",
            str(sum(task["images"].values())),
            show_percent(task["across"]),
            show_percent(task["accuracy"]),
            *[show_percent(task["now"].unknown if task["now"] else None)][: len(estimates)],
            *[show_number(task["drifted"]), "all" if left_out else show_number(task["rectified"])][: len(drifts)],
        )
    console.print(table)
    for name, tasks in about["classes"].items():
        if len(tasks) > 1:
            listed = ", ".join(map(escape, tasks))
            console.print(f"{escape(name)} was learned in {listed}; its probability is the mean over them.")
    damaged = about["damaged_versions"]
    others = [name for name in about["versions"] if name not in (about["version"], *damaged)]
    console.print(
        f"Version {escape(about['version'])}; {about['values'] / 1e6:.2f} million numbers (weights and statistics), "
        f"{about['bytes'] / 2**20:.1f} MB. "
        f"Other versions: {', '.join(map(escape, others)) or 'none'}. "
        f"Images kept: [bold]{about['images_kept'] or 'none'}[/].\n"
        "Accuracies are of validation images when the task was learned: over all classes learned by then, and with the "
        "task known."
    )
    if estimates:
        console.print("Accuracies now are estimated from class statistics, as the images of earlier tasks are gone.")
    if has_moved:
        console.print(
            "Drift is the RMSE by which learning a task moved features, residual drift what the retrospector leaves."
        )
    if damaged:
        listed = ", ".join(escape(str(folder / "versions" / name)) for name in damaged)
        console.print(f"Corrupt versions, which can be deleted: {listed}.")
    if about["unfinished_learn"]:
        console.print("A learn has not finished; if it is not running, rerun its command to resume.")
    shift = about.get("shift")
    if shift is not None:
        console.print(
            f"Compared with {escape(shift['task'])}, the newest task: the mean feature of {shift['num_images']} images "
            f"is shifted by {shift['shift']:.2f} standard deviations, where {shift['by_chance']:.2f} is expected by "
            f"chance.\nMean confidence {shift['sure']:.2f}, on validation images {shift['usual_sure']:.2f}."
        )


def print_damaged(console: Console, folder: Path, error: DamagedError) -> None:
    """Which versions of a model can be used, where the current one cannot."""
    table = Table("version", "state", box=None, padding=(0, 2))
    for name, state in error.states.items():
        table.add_row(escape(name), state)
    console.print(table)
    if error.newest_intact is not None:
        command = shlex.join(["recollect", "rollback", str(folder), "--to", error.newest_intact])
        console.print(f"[bold]{escape(command)}[/] makes the newest intact version current.", soft_wrap=True)


def print_edited(what: str, folder: Path, edited: Edited) -> None:
    """What an edit of classes has changed, and how to undo it."""
    print_text(f"{what} {folder} is now at {edited.version}; {_undo(folder, edited.before)}.")


def print_forgotten(classes: Sequence[str], folder: Path, forgotten: Forgotten) -> None:
    """What was forgotten, and where it is still stored."""
    what = f"Forgot {', '.join(classes)}. " if classes else ""
    undo = f"; {_undo(folder, forgotten.before)}" if forgotten.before else ""
    print_text(f"{what}{folder} is now at {forgotten.version}{undo}.")
    if forgotten.holders:
        print_text(
            f"Versions that still contain what was forgotten: {', '.join(forgotten.holders)}; "
            f"{shlex.join(['recollect', 'forget', str(folder), '--purge'])} deletes all versions but the current one."
        )
    if forgotten.purged:
        print_text(f"Deleted {', '.join(forgotten.purged)}. Copies of the folder elsewhere are not changed.")


def _undo(folder: Path, version: str) -> str:
    return f"{shlex.join(['recollect', 'rollback', str(folder), '--to', version])} undoes this"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural * (number != 1)}"


def show_percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def show_number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
