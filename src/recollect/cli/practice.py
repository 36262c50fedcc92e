"""The commands for people with a folder of images: learn, predict, inspect, check, export, rollback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from recollect.cli.base import app

Flag = Annotated[bool, Parameter(negative=())]


@app.command
def learn(
    model: Path,
    images: Path,
    *,
    task: str,
    backbone: str | None = None,
    image_size: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    set: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    mirror: Annotated[bool | None, Parameter(negative="--no-mirror")] = None,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    device: str = "auto",
    threads: int = 0,
    checkpoint_every: float = 60.0,
) -> None:
    """Teach a model one more task from a folder with a sub-folder of images for each class; the first call makes it.

    Killed at any point, the model predicts as before and the same command goes on. Afterwards the images can go.

    Parameters
    ----------
    model
        The model folder.
    images
        The folder of images: photos/2026-05/cat/*.jpg and so on, of any size and format.
    task
        A name for what is learned now, such as may.
    backbone
        When the model is made: its network, as `recollect list` names them; resnet18 if left out.
    image_size
        When the model is made: the middle square of each image is resized to so many pixels; 64 if left out.
    epochs
        When the model is made: at most so many epochs a phase, ended early where validation stalls; 20 if left out.
    seed
        When the model is made: decides everything random.
    set
        When the model is made: options of the backbone as key=value, such as width=32.
    mirror
        When the model is made: whether a mirrored image is still of its class; yes if left out.
    precision
        When the model is made: as of `recollect run`.
    device
        auto, cpu, cuda, cuda:1, mps.
    threads
        Processor threads; 0 leaves torch's own choice.
    checkpoint_every
        Seconds between checkpoints.
    """
    from recollect.cli.console import stdout
    from recollect.cli.practising import learn_task, not_of_a_backbone
    from recollect.errors import UserError
    from recollect.runs import parse

    made = {"backbone": backbone, "image_size": image_size, "epochs": epochs, "seed": seed}
    made |= {"precision": None if precision == "auto" else precision, "flip": mirror}
    options = parse(set or [])
    clash = [key for key in options if key in not_of_a_backbone()]
    if clash:
        raise UserError(f"--set takes options of the backbone; {clash[0]} is none")
    given = {key: value for key, value in made.items() if value is not None} | options
    learn_task(stdout(), model, images, task, given, device, threads, checkpoint_every)


@app.command
def predict(
    model: Path,
    images: list[Path],
    *,
    task: str | None = None,
    top: int = 1,
    min_probability: float = 0.0,
    json: Flag = False,
    device: str = "auto",
) -> None:
    """Say what is on images: class, probability, and the task it was learned in.

    Parameters
    ----------
    model
        The model folder.
    images
        Image files, or folders of them.
    task
        The task they belong to, if it is known; only its classes are considered then.
    top
        How many classes to show of each image.
    min_probability
        Answer unknown where the likeliest class is less probable than this.
    json
        Print a list of {"path", "class", "probability", "task", "top"}; of an image that cannot be read also "error".
    device
        auto, cpu, cuda, cuda:1, mps.
    """
    from recollect.cli.console import print_json, stdout
    from recollect.cli.predicting import predict_images, print_predictions
    from recollect.errors import UserError

    found = predict_images(model, images, task, top, min_probability, device)
    if json:
        print_json(found)
    else:
        print_predictions(stdout(), found)
    unread = [each["path"] for each in found if "error" in each]
    if unread:
        raise UserError(f"{len(unread)} of {len(found)} images cannot be read, the first is {unread[0]}")


@app.command
def inspect(model: Path, *, images: Path | None = None, json: Flag = False, device: str = "auto") -> None:
    """Show what a model has learned: tasks, classes, sizes, drift, and what data it keeps.

    Parameters
    ----------
    model
        The model folder.
    images
        A folder of unlabelled images: how far they lie from what the model has learned.
    json
        Print everything as JSON.
    device
        auto, cpu, cuda, cuda:1, mps.
    """
    from recollect.cli.console import stdout
    from recollect.cli.practising import inspect_model

    inspect_model(stdout(), model, images, device, as_json=json)


@app.command
def check(
    model: Path,
    images: Path,
    *,
    max_forgetting: float | None = None,
    min_accuracy: float | None = None,
    json: Flag = False,
    device: str = "auto",
) -> None:
    """Test a model on images laid out as task/class/; with --max-forgetting a gate with an exit code.

    Parameters
    ----------
    model
        The model folder.
    images
        Test images: photos-test/may/cat/*.jpg and so on.
    max_forgetting
        Fail (exit code 1) if a task has lost more percentage points than this since it was learned: since the first
        check of the same files, if that was before anything else was learned, or of its validation images.
    min_accuracy
        Fail (exit code 1) if less than so many percent of a task's images are right with the task unknown.
    json
        Print everything as JSON.
    device
        auto, cpu, cuda, cuda:1, mps.
    """
    from recollect.cli.console import stdout
    from recollect.cli.practising import check_model

    sys.exit(check_model(stdout(), model, images, max_forgetting, min_accuracy, device, as_json=json))


@app.command
def export(model: Path, file: Path) -> None:
    """Write a model as one ONNX file: backbone, chain and heads, pixels to probabilities. Needs recollect-rfe[onnx].

    Parameters
    ----------
    model
        The model folder.
    file
        The file to write, such as model.onnx.
    """
    from recollect.cli.console import print_text
    from recollect.deploy import ContinualClassifier
    from recollect.deploy.export import export as write

    write(ContinualClassifier.load(model), file)
    print_text(
        f"{file} takes bytes [n, 3, size, size] and gives probabilities; its metadata says the classes and the rest."
    )


@app.command
def rollback(model: Path, *, to: str) -> None:
    """Go back to the model as it was when a task had been learned.

    Parameters
    ----------
    model
        The model folder.
    to
        The last task that is to stay, or the name of a version as `recollect inspect` shows them.
    """
    from recollect.cli.console import print_text
    from recollect.cli.practising import go_back

    print_text(go_back(model, to))
