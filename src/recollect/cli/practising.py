"""What the practitioner's commands do and print."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from recollect.audit import take_stock
from recollect.cli.progress import ProgressBar
from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.folder import UNFINISHED, current, is_ours, roll_back, save_version, versions_of
from recollect.deploy.learning import check_name
from recollect.deploy.report import as_json as check_as_json
from recollect.deploy.report import check, describe, measure_shift
from recollect.engine import Runtime
from recollect.errors import UserError
from recollect.runs.lock import locked
from recollect.streams.images import SUFFIXES
from recollect.sweeps.estimate import seconds_an_image

FIRST_STAGES = 1.4  # what both stages take over plain training
LATER_STAGES = 2.0  # the same with the old network beside the new one
UNKNOWN = "unknown"
CHUNK = 512  # images read at a time


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
    if folder.exists() and not (folder.is_dir() and all(is_ours(path.name) for path in folder.iterdir())):
        raise UserError(f"{folder} is no model folder; give an empty or new one")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        for left in folder.glob(f"model.json.*.{UNFINISHED}"):  # by a crash
            left.unlink()
        if (folder / "model.json").exists() or versions_of(folder):
            classifier = ContinualClassifier.load(folder, device=device)
            names = [each.name for each in classifier.tasks_]
            if task == names[-1] and (folder / UNFINISHED).exists():  # killed between the last two steps
                shutil.rmtree(folder / UNFINISHED)
                console.print(f"[bold]{escape(task)}[/] was learned already; what was left of that is cleared.")
                return
            if task in names:
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
        with ProgressBar(console, task) as bar:
            classifier.learn(data, task, work=folder / UNFINISHED, observer=bar, heed_signals=True,
                             checkpoint_seconds=checkpoint_seconds)  # fmt: skip
        save_version(folder, classifier.model)
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    learned = classifier.tasks_[-1]
    right = "" if learned.accuracy is None else f" {learned.accuracy:.1f} % of its validation images are right."
    known = f"{len(classifier.classes_)} classes of {len(classifier.tasks_)} task{'s' * (len(classifier.tasks_) > 1)}"
    console.print(
        f"[bold]{escape(task)}[/] is learned in {learned.seconds:.0f} s.{right} "
        f"[bold]{escape(str(folder))}[/] knows {known} and keeps no image."
    )


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


def predict_images(
    folder: Path, paths: Sequence[Path], task: str | None, top: int, min_probability: float, device: str
) -> list[dict[str, Any]]:
    """Of each image: path, class, probability, task, and the likeliest few."""
    if top < 1 or not 0 <= min_probability <= 1:
        raise UserError(f"--top counts classes and --min-probability is a share; got {top} and {min_probability}")
    classifier = ContinualClassifier.load(folder, device=device)
    tasks = classifier.tasks_
    names = classifier.classes_
    if min_probability and UNKNOWN in names:
        raise UserError(f"a class is called {UNKNOWN!r}, which --min-probability answers too; leave the option out")
    if task is not None:
        names = list(next((t.classes for t in tasks if t.name == task), ()))
    found = []
    files = [file for path in paths for file in (pictures_under(path) if path.is_dir() else [path])]
    chunks = (files[start : start + CHUNK] for start in range(0, len(files), CHUNK))
    rows = (row for chunk in chunks for row in classifier.predict_proba(chunk, task))
    for path, row in zip(files, rows, strict=True):
        order = sorted(range(len(names)), key=lambda place: -row[place])[:top]
        shown = [
            {"class": names[place], "probability": float(row[place]), "task": task or _owner(tasks, names[place])}
            for place in order
        ]
        best = shown[0] if row[order[0]] >= min_probability else {**shown[0], "class": UNKNOWN, "task": None}
        found.append({"path": str(path), **best, "top": shown})
    return found


def pictures_under(folder: Path) -> list[Path]:
    """All images of a folder and its sub-folders, in order."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UserError(f"there are no images under {folder}")
    return found


def _owner(tasks: Sequence[Any], name: str) -> str:
    """The task that holds a class; the newest of several."""
    return str([task.name for task in tasks if name in task.classes][-1])


def print_predictions(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 2))
    for title in ("image", "class", "probability", "task"):
        table.add_column(title, overflow="fold")
    for each in found:
        for place, row in enumerate([each, *each["top"][1:]]):
            table.add_row(
                escape(each["path"]) if place == 0 else "",
                escape(row["class"]),
                f"{row['probability']:.3f}",
                escape(row["task"] or "–"),
            )
    console.print(table)


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
    table = Table("task", "classes", "images", "right when learned", "drift", "left of it", box=None, padding=(0, 2))
    for task in about["tasks"]:
        classes = ", ".join(escape(name) for name in task["classes"])
        table.add_row(escape(task["name"]), classes, str(sum(task["images"].values())), _percent(task["accuracy"]),
                      _number(task["drifted"]), _number(task["rectified"]))  # fmt: skip
    console.print(table)
    twice = {name: owners for name, owners in about["classes"].items() if len(owners) > 1}
    for name, owners in twice.items():
        console.print(f"{escape(name)} was learned in {', '.join(map(escape, owners))}; its probability is their sum.")
    console.print(
        f"Version {about['version']} of {len(about['versions'])}; {about['values'] / 1e6:.2f} M values, "
        f"{about['bytes'] / 2**20:.1f} MB. Images kept: [bold]{kept or 'none'}[/].\n"
        "Drift is the RMSE that learning a task moved features by, and what its retrospector leaves of that."
    )
    if about["unfinished_learn"]:
        console.print("A learn was cut; its command goes on with it.")
    if images is not None:
        shift = about["shift"]
        console.print(
            f"{shift['num_images']} images lie {shift['distance']:.2f} from the nearest class, where "
            f"{shift['usual']:.2f} is usual; {100 * shift['share_beyond']:.0f} % lie beyond what was usual."
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
    """Print accuracies; 1 where a task has forgotten more than allowed, or is poorer than asked."""
    for option, value in (("--max-forgetting", max_forgetting), ("--min-accuracy", min_accuracy)):
        if value is not None and not -100 <= value <= 100:
            raise UserError(f"{option} is a number up to 100, got {value}")
    current(folder)  # before a lock is put into a folder that is no model's
    with locked(folder):
        found = check(folder, images, device)
    worse = [
        c for c in found if max_forgetting is not None and c.forgetting is not None and c.forgetting > max_forgetting
    ]
    poor = [c for c in found if min_accuracy is not None and c.across < min_accuracy]
    if as_json:
        print(json.dumps([check_as_json(each) for each in found], indent=1, ensure_ascii=False))
        return 1 if worse or poor else 0
    table = Table("task", "images", "task known", "task unknown", "before", "forgotten", "", box=None, padding=(0, 2))
    for each in found:
        table.add_row(escape(each.task), str(each.num_images), _percent(each.within), _percent(each.across),
                      _percent(each.before), _number(each.forgetting, 1), each.against)  # fmt: skip
    console.print(table)
    for each in worse:
        console.print(f"[bold red]{escape(each.task)}[/] has lost more than {max_forgetting:g} points.")
    for each in poor:
        console.print(f"[bold red]{escape(each.task)}[/] is right below {min_accuracy:g} % with the task unknown.")
    return 1 if worse or poor else 0


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
