"""The commands for model folders: learn, inspect, export, rollback."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

from cyclopts import Parameter

from recollect.cli.base import Device, Flag, ModelFolder, Precision, Texts, Threads, Wait, app


@app.command
def learn(
    model: ModelFolder,
    images: Path,
    *,
    task: str,
    adapt: Annotated[bool | None, Parameter(negative="--no-adapt")] = None,
    minutes: float | None = None,
    force: Flag = False,
    strict: Flag = False,
    backbone: str | None = None,
    image_size: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    set: Texts = None,
    mirror: Annotated[bool | None, Parameter(negative="--no-mirror")] = None,
    precision: Precision = "auto",
    device: Device = "auto",
    threads: Threads = 0,
    checkpoint_every: float = 60.0,
    wait: Wait = False,
) -> None:
    """Train a model on one more task, from a folder with one sub-folder of images per class; creates it if needed.

    After an interruption the model predicts as before, and the same command resumes. Once a task is learned, its images
    can be deleted.

    Parameters
    ----------
    images
        The folder of images: photos/2026-05/cat/*.jpg and so on, of any size; JPEG, PNG, WebP, AVIF, TIFF, BMP, GIF,
        PPM, and HEIC with recollect-rfe[heif].
    task
        A name for this task, such as may.
    adapt
        Also train a pretrained backbone on the images: minutes instead of seconds, and sometimes more accurate. The
        result is kept if it classifies validation images at least as well. Backbones without pretrained weights are
        always trained, unless --no-adapt.
    minutes
        Adapt as --adapt does, for about this long: training ends before an epoch that would exceed the limit, after
        one epoch at least.
    force
        Keep the adapted model even if validation images say that it is worse.
    strict
        Refuse a folder with files that are not images or cannot be read; without it they are skipped and listed.
    backbone
        For a new model: its backbone; `recollect list` shows all; default efficientnet-lite1, with
        pretrained weights.
    image_size
        For a new model: the centre square of each image is resized to this many pixels; by default 224 for photos and
        160 for smaller images, or 64 without pretrained weights.
    epochs
        For a new model: maximum number of epochs per phase; early stopping may end it sooner; default 6, or 20
        without pretrained weights.
    seed
        For a new model: the random seed.
    set
        For a new model: options of the backbone as key=value, such as features=last.
    mirror
        For a new model: whether to augment by random horizontal flips; default yes.
    precision
        For a new model: the numeric precision of training.
    checkpoint_every
        Seconds between checkpoints.
    """
    from recollect.cli.console import stdout
    from recollect.cli.rendering.model import LearningProgress, print_estimate, print_learned
    from recollect.deploy import ContinualClassifier, ModelStore
    from recollect.deploy.classifier import classifier_options
    from recollect.deploy.model import RANGES, FixedSettingsError, Settings
    from recollect.deploy.stages import LearnResult
    from recollect.engine import Runtime
    from recollect.errors import UserError
    from recollect.nets import backbones
    from recollect.pictures import refuse_missing
    from recollect.runs import parse
    from recollect.runs.settings import options_of_function

    flags: dict[str, Any] = {
        "backbone": backbone,
        "image_size": image_size,
        "epochs": epochs,
        "seed": seed,
        "flip": mirror,
    }
    flags |= {"precision": None if precision == "auto" else precision}
    given = {name: value for name, value in flags.items() if value is not None}
    for name, (least, most) in RANGES.items():
        if given.get(name) == 0:  # in Python it stands for the default
            raise UserError(
                f"{name.replace('_', ' ')} is an integer from {least} to {most}, got 0; leave it out for the default"
            )
    options = parse(set or [])
    clash = [name for name in options if name in classifier_options()]
    if clash:
        raise UserError(f"--set takes options of the backbone, which {clash[0]} is not")
    console, started = stdout(), perf_counter()
    refuse_missing(images)  # before the folder of a new model is made
    Runtime.choose(device, "fp32", threads)
    settings = ContinualClassifier(device=device, **given, **options).settings if given or options else None
    store = ModelStore(model)
    with LearningProgress(console, task) as progress:

        def learn_with(settings: Settings | None) -> LearnResult:
            return store.learn(
                images, task, settings, adapt=adapt, minutes=minutes, force=force, strict=strict, device=device,
                observer=progress, progress=progress.track_files,
                before_training=lambda plan: print_estimate(console, plan, device, threads), heed_signals=True,
                checkpoint_seconds=checkpoint_every, wait=wait,
            )  # fmt: skip

        try:
            result = learn_with(settings)
        except FixedSettingsError as error:
            made = store.load().settings
            defaults = options_of_function("backbone", backbones()[made.backbone].make)
            fixed = {name: option.default for name, option in defaults.items()} | vars(made) | made.backbone_options
            changed = [name for name, value in (given | options).items() if fixed.get(name) != value]
            if changed:
                names = {"flip": "--mirror"} | {name: f"--set {name}" for name in options}
                listed = ", ".join(names.get(name, f"--{name.replace('_', '-')}") for name in changed)
                is_fixed = "is fixed" if len(changed) == 1 else "are fixed"
                raise UserError(f"{model} already exists; {listed} {is_fixed} when a model is created") from error
            result = learn_with(None)
    print_learned(console, model, result, perf_counter() - started)


@app.command
def inspect(
    model: ModelFolder,
    *,
    images: Path | None = None,
    json: Flag = False,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Show the tasks of a model with their classes, accuracy and drift, and the versions of the model.

    Parameters
    ----------
    images
        A folder of unlabelled images to compare with the images of the last task.
    json
        Print everything as JSON.
    """
    from recollect.cli.console import print_json, stdout
    from recollect.cli.rendering.model import print_damaged, print_model
    from recollect.deploy import ContinualClassifier, ModelStore
    from recollect.deploy.inspection import DamagedError, describe, measure_shift
    from recollect.engine import Runtime
    from recollect.errors import UserError
    from recollect.pictures import find_images

    try:
        about = describe(ModelStore(model))
    except DamagedError as error:
        if json:
            print_json({"versions": error.states, "newest_intact": error.newest_intact, "error": str(error)})
        else:
            print_damaged(stdout(), model, error)
        raise
    intact = [name for name in about["versions"] if name not in about["damaged_versions"]]
    about["images_kept"] = sum(_count_images(model / "versions" / name) for name in intact)
    if images is not None:
        paths = find_images(images)
        if not paths:
            raise UserError(f"there are no images in {images}")
        Runtime.choose(device, "fp32", threads)
        about["shift"] = vars(measure_shift(ContinualClassifier.load(model, device=device), paths))
    if json:
        print_json(about)
    else:
        print_model(stdout(), model, about)


def _count_images(version: Path) -> int:
    """The images in a version; none if a learn has removed it meanwhile."""
    from recollect.audit import take_inventory
    from recollect.errors import UserError

    try:
        return sum(len(store) for store in take_inventory(version).stores)
    except (UserError, OSError):
        if version.exists():
            raise
        return 0


@app.command
def export(model: ModelFolder, file: Path | None = None, *, wait: Wait = False) -> None:
    """Write a model as one ONNX file, from pixels to probabilities. Requires recollect-rfe[onnx].

    Parameters
    ----------
    file
        The file to write, such as model.onnx. Without it, the file is stored in the current version of the model,
        where predict and serve find it: they then start faster.
    """
    from recollect.cli.console import print_text, stdout
    from recollect.deploy import ContinualClassifier
    from recollect.deploy.export import export as export_model
    from recollect.deploy.export import store_export

    with stdout().status("Writing the file"):  # on a terminal
        if file is None:
            print_text(f"{store_export(model, wait=wait)} is stored; predict and serve use it until the model changes.")
            return
        export_model(ContinualClassifier.load(model), file)
    print_text(
        f"{file} maps uint8 images [n, 3, size, size] to probabilities; its metadata has the classes and preprocessing."
    )


@app.command
def rollback(model: ModelFolder, *, to: str, wait: Wait = False) -> None:
    """Make an earlier version of a model current.

    Parameters
    ----------
    to
        The task to return to, after which others are undone, or the name of a version; `recollect inspect` lists them.
    """
    from recollect.cli.console import print_text
    from recollect.deploy import ModelStore
    from recollect.errors import UserError

    store = ModelStore(model)
    try:
        before = store.current()
    except UserError:  # it is damaged, which rollback repairs
        before = None
    version = store.rollback(to, wait=wait)
    if version == before:
        others = ", ".join(name for name in store.versions() if name != version) or "none"
        print_text(f"{model} is already at {version}. Other versions: {others}.")
    else:
        print_text(f"{model} is now at {version}; the next learn continues from there.")
