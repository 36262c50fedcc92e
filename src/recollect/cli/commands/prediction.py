"""The commands that classify images with a model: predict and check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.cli.base import Device, Flag, Model, ModelFolder, Paths, Threads, Wait, app

if TYPE_CHECKING:
    from recollect.inference import Classifier


@app.command
def predict(
    model: Model,
    images: Paths,
    *,
    task: str | None = None,
    top: int = 1,
    min_probability: float = 0.0,
    csv: Flag = False,
    json: Flag = False,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Classify images: class, probability, and the task in which the class was learned.

    Results are printed while images are read. The exit code is 2 if an image cannot be read.

    Parameters
    ----------
    images
        Image files, or folders of them; subfolders at any depth are read too.
    task
        The task of the images, if known; the prediction is then one of its classes.
    top
        Number of classes to show per image.
    min_probability
        Predict `unknown` if the probability of the predicted class is below this.
    csv
        Print lines of path,class,probability,task,error.
    json
        Print a list of {"path", "class", "probability", "task", "top"}, with "error" for an image that cannot be read.
    """
    from recollect.cli.console import stdout
    from recollect.cli.rendering.predictions import CsvPrinter, JsonPrinter, TablePrinter
    from recollect.errors import UserError
    from recollect.inference import predict_chunks

    if csv and json:
        raise UserError("give --csv or --json, not both")
    if csv and top > 1:
        raise UserError("--csv prints one class per image; leave out --top, or use --json")
    classifier = _load(model, device, threads)
    printer = CsvPrinter() if csv else JsonPrinter() if json else TablePrinter(stdout())
    num_images, unreadable = 0, []
    for chunk in predict_chunks(classifier, images, task, top=top, min_probability=min_probability, threads=threads):
        printer.add(chunk)
        num_images += len(chunk)
        unreadable += [prediction["path"] for prediction in chunk if "error" in prediction]
    printer.finish()
    if unreadable:
        raise UserError(f"{len(unreadable)} of {num_images} images cannot be read, the first is {unreadable[0]}")


def _load(model: Path, device: str, threads: int) -> Classifier:
    """The classifier of a model folder or, without importing torch, of an exported file, also a stored one."""
    from recollect.inference import ExportedClassifier, is_exported, load_stored

    if is_exported(model):
        return ExportedClassifier.load(model, device=device, threads=threads)
    stored = load_stored(model, device, threads)
    if stored is not None:
        return stored[1]
    from recollect.deploy import ContinualClassifier
    from recollect.engine import Runtime

    Runtime.choose(device, "fp32", threads)
    return ContinualClassifier.load(model, device=device)


@app.command
def check(
    model: ModelFolder,
    images: Path,
    *,
    max_forgetting: float | None = None,
    min_accuracy: float | None = None,
    max_confusion: float = 25.0,
    csv: Path | None = None,
    html: Path | None = None,
    json: Flag = False,
    device: Device = "auto",
    threads: Threads = 0,
    wait: Wait = False,
) -> None:
    """Evaluate a model on test images in task/class/: accuracy per task and class, confused classes, wrong images.

    The exit code is 1 if --max-forgetting, --min-accuracy or --max-confusion is violated.

    Parameters
    ----------
    images
        Test images: photos-test/may/cat/*.jpg and so on.
    max_forgetting
        Fail (exit code 1) if a task has lost more percentage points than this. The reference is the first check of
        the same files if no later task had been learned by then, otherwise the validation accuracy.
    min_accuracy
        Fail (exit code 1) if a task's accuracy over all classes is below this percentage.
    max_confusion
        Fail (exit code 1) if a task with at least 10 images is confused with others: its accuracy over all classes is
        more than this many points below that with the task known. 100 never fails.
    csv
        Write the wrong images to this file: path, task, class, predicted class and its probability.
    html
        Write everything to this file as one page, with small copies of the wrong images.
    json
        Print everything as JSON.
    """
    from recollect.cli.console import print_json, stdout
    from recollect.cli.rendering.check import print_check, wrong_images_csv
    from recollect.cli.rendering.check_page import render_page
    from recollect.deploy import Gate, ModelStore
    from recollect.engine import Runtime
    from recollect.errors import UserError
    from recollect.storage import write_text

    for file in (csv, html):  # before minutes of work
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise UserError(f"{file} cannot be written; give a file in an existing folder")
        if file is not None and model.resolve() in file.resolve().parents:
            raise UserError(f"{file} is in the model folder, which keeps no images; give a file elsewhere")
    Runtime.choose(device, "fp32", threads)
    report = ModelStore(model).check(
        images, Gate(max_forgetting, min_accuracy, max_confusion), device=device, wait=wait
    )
    if csv is not None:
        write_text(csv, wrong_images_csv(report.details))
    if html is not None:
        write_text(html, render_page(report, f"Check of {model}"))
    if json:
        print_json(report.to_json())
    else:
        print_check(stdout(), report)
    sys.exit(1 if report.objections else 0)
