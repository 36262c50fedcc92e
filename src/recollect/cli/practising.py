"""What the practitioner's commands do and print."""

from __future__ import annotations

import errno
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import track
from rich.table import Table

from recollect.audit import take_stock
from recollect.cli.console import print_json
from recollect.cli.predicting import pictures_under
from recollect.cli.progress import ProgressBar
from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.folder import (
    current,
    finish,
    load_model,
    model_before,
    roll_back,
    save_version,
    strangers_in,
    versions_of,
)
from recollect.deploy.learning import check_name, identity_of
from recollect.deploy.report import Checked, check, describe, measure_shift
from recollect.deploy.report import as_json as check_as_json
from recollect.engine import Runtime
from recollect.errors import UserError
from recollect.escaping import escape
from recollect.storage import UNFINISHED, LinkError, lock_folder
from recollect.sweeps.estimate import seconds_an_image

FIRST_STAGES = 1.4  # what both stages take over plain training
ROUNDING = 1e-6  # points by which shares of images may differ and be the same
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
    task = check_name(task)
    if folder.exists() and not (folder / "model.json").is_file():
        if not folder.is_dir():
            raise UserError(f"{folder} is a file; give a folder for the model, empty or new")
        strangers = strangers_in(folder)
        if strangers:
            raise UserError(f"{folder} is no model folder, for it holds {strangers[0]!r}; give an empty or new one")
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        for left in folder.glob(f"model.json.*.{UNFINISHED}"):  # by a crash
            left.unlink()
        classifier, is_at_its_end = _opened(folder, task, made, device)

        def shown(paths: Iterable[Path], num: int) -> Iterable[Path]:
            return track(paths, "reading images", num, console=console, transient=True)

        data = read_labelled(images, classifier.settings.image_size, shown)
        before = model_before(folder) if is_at_its_end else classifier.model if classifier.has_learned else None
        if finish(folder, identity_of(classifier.settings, before, data, task)):
            console.print(f"[bold]{escape(task)}[/] was learned already from these images; that model is in use.")
            return
        if is_at_its_end or (versions_of(folder) and not classifier.has_learned):
            _refuse(folder, task)
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
    known = f"{_counted(len(classifier.classes_), 'class', 'es')} of {_counted(len(classifier.tasks_), 'task')}"
    console.print(
        f"[bold]{escape(task)}[/] is learned in {learned.seconds:.0f} s.{right} "
        f"[bold]{escape(str(folder))}[/] knows {known} and keeps no image."
    )


def _counted(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{plural * (number != 1)}"


def _opened(folder: Path, task: str, made: Mapping[str, Any], device: str) -> tuple[ContinualClassifier, bool]:
    """The model to be taught, and whether it has this task already from a learn that was cut while it tidied up."""
    was_cut = (folder / UNFINISHED).is_dir()
    if not (folder / "model.json").exists() and (was_cut or not versions_of(folder)):
        return ContinualClassifier(device=device, **made), False
    classifier = ContinualClassifier.load(folder, device=device)
    last = classifier.tasks_[-1]
    if was_cut and last.name == task and {path.name for path in (folder / UNFINISHED).iterdir()} <= {last.learn}:
        return classifier, True
    if task in [each.name for each in classifier.tasks_]:
        _refuse(folder, task)
    if made:
        names = ", ".join("--mirror" if key == "flip" else f"--{key.replace('_', '-')}" for key in made)
        raise UserError(f"{folder} is made already, and {names} cannot be changed: leave it out, or make a new model")
    return classifier, False


def _refuse(folder: Path, task: str) -> NoReturn:
    current(folder)  # says what is lost, if that is so
    raise UserError(f"the task {task!r} is learned already; choose another name, or roll back to before it")


def not_of_a_backbone() -> set[str]:
    """Options of a classifier that are none of its backbone's."""
    return {name for name in signature(ContinualClassifier).parameters if name != "backbone_options"}


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
    runtime = Runtime.choose(device, settings.precision, threads)
    each = seconds_an_image(settings.backbone, settings.backbone_options, shape, runtime, settings.batch_size)
    stages = LATER_STAGES if classifier.has_learned else FIRST_STAGES
    minutes = stages * each * num * settings.epochs / 60
    listed = ", ".join(f"{escape(name)} {number}" for name, number in counts.items())
    console.print(
        f"{num} images: {listed}. About [bold]{max(minutes, 0.1):.1f} minutes[/], less where a phase ends early."
    )


def inspect_model(console: Console, folder: Path, images: Path | None, device: str, *, as_json: bool) -> None:
    """Print what a model is and, with images, how far they lie from it."""
    about = describe(folder)
    damaged = about["damaged_versions"]
    whole = [name for name in about["versions"] if name not in damaged]
    kept = sum(len(store) for name in whole for store in take_stock(folder / "versions" / name).stores)
    about["images_kept"] = kept
    if images is not None:
        paths = pictures_under(images)
        if not paths:
            raise UserError(f"there are no images under {images}")
        classifier = ContinualClassifier.load(folder, device=device)
        about["shift"] = vars(measure_shift(classifier, read_images(paths, classifier.settings.image_size)))
    if as_json:
        print_json(about)
        return
    titles = ("task", "classes", "images", "right when learned", "among all", "drift", "left of it")
    table = Table(*titles, box=None, padding=(0, 2))
    for task in about["tasks"]:
        classes = ", ".join(escape(name) for name in task["classes"])
        drift = _number(task["drifted"]), _left(task["drifted"], task["rectified"])
        table.add_row(escape(task["name"]), classes, str(sum(task["images"].values())), _percent(task["accuracy"]),
                      _percent(task["across"]), *drift)  # fmt: skip
    console.print(table)
    others = [name for name in whole if name != about["version"]]
    twice = {name: owners for name, owners in about["classes"].items() if len(owners) > 1}
    for name, owners in twice.items():
        console.print(f"{escape(name)} was learned in {', '.join(map(escape, owners))}; its probability is their sum.")
    console.print(
        f"Version {escape(about['version'])}; {about['values'] / 1e6:.2f} M values, {about['bytes'] / 2**20:.1f} MB. "
        f"Versions to go back to: {', '.join(map(escape, others)) or 'none'}. Images kept: [bold]{kept or 'none'}[/].\n"
        "Right when learned, of validation images: told their task, and among all classes then known.\n"
        "Drift is the RMSE that learning a task moved features by, and what its retrospector leaves of that."
    )
    if damaged:
        listed = ", ".join(escape(str(folder / "versions" / name)) for name in damaged)
        console.print(f"Damaged, of no use, and free to be deleted: {listed}.")
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
            raise UserError(f"{option} is a number from -100 to 100, got {value}")
    current(folder)  # before a lock is put into a folder that is no model's
    try:
        with lock_folder(folder):
            found = check(folder, images, device)
    except (OSError, LinkError) as error:  # read-only, or a mounted volume made of links: it is read all the same
        if isinstance(error, OSError) and error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        found = check(folder, images, device, keep=False)
        warnings.warn(f"{folder} cannot be written: these figures are not kept for later checks", stacklevel=2)
    objections = [(each.task, why) for each in found for why in _objections(each, max_forgetting, min_accuracy)]
    tested = {each.task for each in found}
    untested = [task.name for task in load_model(folder).tasks if task.name not in tested]
    if as_json:
        about = {
            "passed": not objections,
            "objections": [{"task": task, "why": why} for task, why in objections],
            "tasks": [check_as_json(each) for each in found],
            "untested": untested,
        }
        print_json(about)
        return 1 if objections else 0
    titles = ("task", "images", "task known", "before", "forgotten", "", "task unknown", "before")
    table = Table(*titles, box=None, padding=(0, 2))
    for each in found:
        table.add_row(escape(each.task), str(each.num_images), _percent(each.within),
                      "–" if each.of_one_class else _percent(each.before), _number(each.forgetting, 1), each.against,
                      _percent(each.across), _percent(each.across_before))  # fmt: skip
    console.print(table)
    for task, why in objections:
        console.print(f"[bold red]{escape(task)}[/] {why}.")
    unasked = _lost_unasked(found, max_forgetting) if max_forgetting is not None and min_accuracy is None else ""
    if unasked:
        console.print(unasked)
    if untested:
        console.print(f"Not tested: {escape(', '.join(untested))}.")
    return 1 if objections else 0


def _objections(checked: Checked, max_forgetting: float | None, min_accuracy: float | None) -> Iterator[str]:
    """Why a task does not pass the gate."""
    lost = checked.forgetting
    if max_forgetting is not None and lost is not None and lost > max_forgetting + ROUNDING:
        yield f"has lost more than {max_forgetting:g} points"
    if max_forgetting is not None and lost is None and not checked.is_newest:
        yield "has no figure from when it was learned to compare with"
    if min_accuracy is not None and checked.across < min_accuracy - ROUNDING:
        yield f"is right below {min_accuracy:g} % with the task unknown"


def _lost_unasked(found: Sequence[Checked], max_forgetting: float) -> str:
    """What the gate does not look at: how `predict` answers where nobody says the task."""
    falls = [(c.across_before - c.across, c) for c in found if c.across_before is not None and not c.of_one_class]
    lost, worst = max(falls, key=lambda each: each[0], default=(0.0, None))
    if worst is None or lost <= max_forgetting:
        return ""
    return (
        f"With the task unknown, as predict answers unless told, {escape(worst.task)} fell from "
        f"{worst.across_before:.1f} % to {worst.across:.1f} %, there being more classes now; "
        "--min-accuracy is a gate for that."
    )


def go_back(folder: Path, task: str) -> str:
    """Make the version that ends with a task the current one; says what is so now."""
    if not versions_of(folder):
        current(folder)  # says what is missing
    with lock_folder(folder):
        name = roll_back(folder, task)
    return f"{folder} is at {name} again; learning goes on from there."


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _left(drifted: float | None, rectified: float | None) -> str:
    """What is left of a drift; all of it where the retrospector would have added to it."""
    return "all" if drifted is not None and drifted == rectified else _number(rectified)


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
