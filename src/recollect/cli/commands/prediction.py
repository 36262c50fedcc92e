"""The command that classifies images with a model: predict."""

from __future__ import annotations

from recollect.cli.base import Device, Flag, ModelFolder, Paths, Threads, app


@app.command
def predict(
    model: ModelFolder,
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
    from recollect.deploy import ContinualClassifier
    from recollect.deploy.prediction import predict_chunks
    from recollect.engine import Runtime
    from recollect.errors import UserError

    if csv and json:
        raise UserError("give --csv or --json, not both")
    if csv and top > 1:
        raise UserError("--csv prints one class per image; leave out --top, or use --json")
    Runtime.choose(device, "fp32", threads)
    classifier = ContinualClassifier.load(model, device=device)
    printer = CsvPrinter() if csv else JsonPrinter() if json else TablePrinter(stdout())
    num_images, unreadable = 0, []
    for chunk in predict_chunks(classifier, images, task, top=top, min_probability=min_probability, threads=threads):
        printer.add(chunk)
        num_images += len(chunk)
        unreadable += [prediction["path"] for prediction in chunk if "error" in prediction]
    printer.finish()
    if unreadable:
        raise UserError(f"{len(unreadable)} of {num_images} images cannot be read, the first is {unreadable[0]}")
