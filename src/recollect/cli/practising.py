"""What the practitioner's commands do and print."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from recollect.audit import take_stock
from recollect.cli.predicting import pictures_under
from recollect.cli.progress import ProgressBar
from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.folder import (
    UNFINISHED,
    current,
    finish,
    is_ours,
    load_model,
    roll_back,
    save_version,
    versions_of,
)
from recollect.deploy.learning import check_name
from recollect.deploy.report import as_json as check_as_json
from recollect.deploy.report import check, describe, measure_shift
from recollect.engine import Runtime
from recollect.errors import UserError
from recollect.runs.lock import locked
from recollect.sweeps.estimate import seconds_an_image

FIRST_STAGES = 1.4  # what both stages take over plain training
LATER_STAGES = 2.0  # the same with the old network beside the new one


def learn_task(
    console: Console,
    folder: Path,
    images: Path,
    task: str,
    made: Mapping[str, Any],
    device: str,
    threads: int,
    checkpoint_seconds: float,
) -> None:
    """Read, estimate, learn, and only then change the model."""
    Runtime.choose(device, "fp32", threads)
    check_name(task)
    if folder.exists() and not (folder / "model.json").is_file():
        strangers = [p.name for p in folder.iterdir() if not is_ours(p.name)] if folder.is_dir() else [folder.name]
        if strangers:
            raise UserError(f"{folder} is no model folder, for it holds {strangers[0]!r}; give an empty or new one")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        for left in folder.glob(f"model.json.*.{UNFINISHED}"):  # by a crash
            left.unlink()
        if finish(folder, task):  # killed between the last steps
            console.print(f"[bold]{escape(task)}[/] was learned already; what was left of that is cleared.")
            return
        if (folder / "model.json").exists() or versions_of(folder):
            classifier = ContinualClassifier.load(folder, device=device)
            if task in [each.name for each in classifier.tasks_]:
                raise UserError(f"the task {task!r} is learned already; choose another name, or roll back to before it")
            if made:
                raise UserError(
                    f"{folder} is made already; {', '.join(made)} cannot be changed: leave it out, or make a new model"
                )
        else:
            classifier = ContinualClassifier(device=device, **made)

        def shown(paths: Iterable[Path], num: int) -> Iterable[Path]:
            return track(paths, "reading images", num, console=console, transient=True)

        data = read_labelled(images, classifier.settings.image_size, shown)
        _print_estimate(console, classifier, len(data.images), data.count(), device, threads)
        with LearningBar(console, task) as bar:
            classifier.learn(data, task, work=folder / UNFINISHED, observer=bar, heed_signals=True,
                             checkpoint_seconds=checkpoint_seconds)  # fmt: skip
        save_version(folder, classifier.model)
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    learned = classifier.tasks_[-1]
    right = ""
    if learned.accuracy is not None and learned.across is not None:
        right = f" Of its validation images {learned.across:.1f} % are right among all classes"
        told = f", {learned.accuracy:.1f} % if told that they are of {escape(task)}."
        right += told if 1 < len(learned.classes) < len(classifier.classes_) else "."
    known = f"{len(classifier.classes_)} classes of {len(classifier.tasks_)} task{'s' * (len(classifier.tasks_) > 1)}"
    console.print(
        f"[bold]{escape(task)}[/] is learned in {learned.seconds:.0f} s.{right} "
        f"[bold]{escape(str(folder))}[/] knows {known} and keeps no image."
    )


class LearningBar(ProgressBar):
    """The bar alone: what was learned is told in words of its own."""

    def event(self, kind: str, **fields: Any) -> None:
        if kind == "resumed":
            self._console.print(f"[bold]{self._title}[/] goes on where it was cut")


def _print_estimate(
    console: Console, classifier: ContinualClassifier, num: int, counts: Mapping[str, int], device: str, threads: int
) -> None:
    settings = classifier.settings
    shape = (3, settings.image_size, settings.image_size)
    each = seconds_an_image(settings.backbone, settings.backbone_options, shape, device, settings.precision, threads)
    stages = LATER_STAGES if classifier.has_learned else FIRST_STAGES
    minutes = stages * each * num * settings.epochs / 60
    listed = ", ".join(f"{escape(name)} {number}" for name, number in counts.items())
    console.print(
        f"{num} images: {listed}. About [bold]{max(minutes, 0.1):.1f} minutes[/], less where a phase ends early."
    )


def inspect_model(console: Console, folder: Path, images: Path | None, device: str, *, as_json: bool) -> None:
    """Print what a model is and, with images, how far they lie from it."""
    kept = sum(len(store) for store in take_stock(folder).stores)
    about = describe(folder) | {"images_kept": kept}
    if images is not None:
        paths = pictures_under(images)
        classifier = ContinualClassifier.load(folder, device=device)
        about["shift"] = vars(measure_shift(classifier, read_images(paths, classifier.settings.image_size)))
    if as_json:
        print(json.dumps(about, indent=1, ensure_ascii=False))
        return
    titles = ("task", "classes", "images", "right when learned", "among all", "drift", "left of it")
    table = Table(*titles, box=None, padding=(0, 2))
    for task in about["tasks"]:
        classes = ", ".join(escape(name) for name in task["classes"])
        table.add_row(escape(task["name"]), classes, str(sum(task["images"].values())), _percent(task["accuracy"]),
                      _percent(task["across"]), _number(task["drifted"]), _number(task["rectified"]))  # fmt: skip
    console.print(table)
    twice = {name: owners for name, owners in about["classes"].items() if len(owners) > 1}
    for name, owners in twice.items():
        console.print(f"{escape(name)} was learned in {', '.join(map(escape, owners))}; its probability is their sum.")
    console.print(
        f"Version {about['version']} of {len(about['versions'])}; {about['values'] / 1e6:.2f} M values, "
        f"{about['bytes'] / 2**20:.1f} MB. Images kept: [bold]{kept or 'none'}[/].\n"
        "Right when learned, of validation images: told their task, and among all classes then known.\n"
        "Drift is the RMSE that learning a task moved features by, and what its retrospector leaves of that."
    )
    if about["unfinished_learn"]:
        console.print("A learn was cut; its command goes on with it.")
    if images is not None:
        shift = about["shift"]
        console.print(
            f"Beside {escape(shift['task'])}, the last task: the mean feature of {shift['num_images']} images has "
            f"moved by {shift['shift']:.2f} standard deviations, where {shift['by_chance']:.2f} is chance.\n"
            f"Their likeliest class has a probability of {shift['sure']:.2f} in the mean, where "
            f"{shift['usual_sure']:.2f} is usual."
        )


def check_model(
    console: Console,
    folder: Path,
    images: Path,
    max_forgetting: float | None,
    min_accuracy: float | None,
    device: str,
    *,
    as_json: bool,
) -> int:
    """Print accuracies; 1 where a task has forgotten more than allowed, is poorer than asked, or cannot be judged."""
    for option, value in (("--max-forgetting", max_forgetting), ("--min-accuracy", min_accuracy)):
        if value is not None and not -100 <= value <= 100:
            raise UserError(f"{option} is a number up to 100, got {value}")
    current(folder)  # before a lock is put into a folder that is no model's
    try:
        with locked(folder):
            found = check(folder, images, device)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        found = check(folder, images, device, keep=False)
        if not as_json:
            console.print(f"{escape(str(folder))} cannot be written: these figures are not kept for later checks.")
    worse = [
        c for c in found if max_forgetting is not None and c.forgetting is not None and c.forgetting > max_forgetting
    ]
    open_ = [c for c in found if max_forgetting is not None and c.forgetting is None and not c.is_newest]
    poor = [c for c in found if min_accuracy is not None and c.across < min_accuracy]
    code = 1 if worse or poor or open_ else 0
    if as_json:
        print(json.dumps([check_as_json(each) for each in found], indent=1, ensure_ascii=False))
        return code
    table = Table("task", "images", "task known", "task unknown", "before", "forgotten", "", box=None, padding=(0, 2))
    for each in found:
        table.add_row(escape(each.task), str(each.num_images), _percent(each.within), _percent(each.across),
                      _percent(each.before), _number(each.forgetting, 1), each.against)  # fmt: skip
    console.print(table)
    for each in worse:
        console.print(f"[bold red]{escape(each.task)}[/] has lost more than {max_forgetting:g} points.")
    for each in open_:
        console.print(f"[bold red]{escape(each.task)}[/] has no figure from when it was learned to compare with.")
    for each in poor:
        console.print(f"[bold red]{escape(each.task)}[/] is right below {min_accuracy:g} % with the task unknown.")
    tested = {each.task for each in found}
    untested = [task.name for task in load_model(folder).tasks if task.name not in tested]
    if untested:
        console.print(f"Not tested: {escape(', '.join(untested))}.")
    return code


def go_back(folder: Path, task: str) -> str:
    """Make the version that ends with a task the current one; says what is so now."""
    if not versions_of(folder):
        current(folder)  # says what is missing
    with locked(folder):
        name = roll_back(folder, task)
    return f"{folder} is at {name} again; learning goes on from there."


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
