"""The commands for experiments: run, resume, list, demo."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.cli.base import CheckpointSeconds, Device, Flag, Precision, Texts, Threads, app
from recollect.distributed.launch import read_launch
from recollect.escaping import escape

if TYPE_CHECKING:
    from recollect.runs import RunConfig


@app.command
def run(
    *,
    stream: str,
    method: str,
    out: Path,
    seed: int = 0,
    data_root: Path | None = None,
    set: Texts = None,
    backbone: str | None = None,
    tasks: int | None = None,
    train_per_class: int | None = None,
    fixed_heads: Flag = False,
    measure_drift: Flag = False,
    precision: Precision = "auto",
    device: Device = "auto",
    threads: Threads = 0,
    checkpoint_every: CheckpointSeconds = 300.0,
    live: Texts = None,
    best: Flag = False,
    force: Flag = False,
) -> None:
    """Train a method on a stream and write a run folder: config.json, events.jsonl, result.json, checkpoint/.

    The same command resumes an interrupted run, and shows the result of a finished one.

    Parameters
    ----------
    stream
        The stream; `recollect list` shows all.
    method
        The method; `recollect list` shows all. Or your own, in a Python file that defines METHODS: file.py, or
        file.py:name for one of several. The file is run.
    out
        The run folder: a new one, or one with the same configuration to resume.
    seed
        The random seed for order, splits, initial weights, augmentation and memory.
    data_root
        Folder with the archives of the dataset, unpacked or not; by default they are downloaded once.
        For the stream `images`, the folder of images.
    set
        Options as key=value, e.g. --set alpha=0 epochs=8 backbone.width=16; `recollect list --stream S --method M`
        shows all options and their defaults.
    backbone
        The backbone; by default that of the stream.
    tasks
        Number of tasks; short for --set stream.tasks=N.
    train_per_class
        Use a seeded subset of N training images per class; short for --set stream.train_per_class=N.
    fixed_heads
        Create all heads at the start, as the paper does, so that future tasks can be evaluated and forward transfer
        measured.
    measure_drift
        Also measure the RMSE of drifted and rectified features after each task.
    precision
        fp32, bf16 mixed precision, or auto: bf16 on devices that support it natively, otherwise fp32.
    live
        Also log losses and accuracies to tensorboard, mlflow or wandb, or to several; requires the extra of that name.
    best
        Start from the settings that a committed search has chosen on validation images for this stream and method;
        --set overrides them.
    force
        Discard the run in this folder and start again.
    """
    from recollect.cli.console import stdout
    from recollect.runs import parse, resolve
    from recollect.runs.tuned import tuned_settings

    short = {"backbone": backbone, "stream.tasks": tasks, "stream.train_per_class": train_per_class}
    settings = {key: value for key, value in short.items() if value is not None} | parse(set or [])
    if best:
        found = tuned_settings(stream, method)
        given = {key.rpartition(".")[2] for key in settings}
        settings |= {key: value for key, value in found["settings"].items() if key.rpartition(".")[2] not in given}
        where = ", ".join(f"{key} {value}" for key, value in found["where"].items())
        stdout().print(
            f"{escape(method)} with {escape(str(found['settings']))}: the best of {found['tried']} settings by "
            f"validation accuracy with the task known, {found['seeds']} seed{'s' * (found['seeds'] > 1)} "
            f"({escape(where)})."
        )
    config = resolve(
        stream, method, seed, settings, fixed_heads=fixed_heads, measure_drift=measure_drift, precision=precision
    )
    _run_and_print(
        config, out, force=force, live=live or (), data_root=data_root, device=device, threads=threads,
        checkpoint_seconds=checkpoint_every,
    )  # fmt: skip


@app.command
def resume(
    folder: Path,
    *,
    method: str | None = None,
    data_root: Path | None = None,
    device: Device = "auto",
    threads: Threads = 0,
    checkpoint_every: CheckpointSeconds = 300.0,
) -> None:
    """Resume the run in a folder from its last checkpoint, with bit-identical results, or show a finished run.

    Parameters
    ----------
    folder
        The run folder.
    method
        The Python file of the run's method, if it comes from one: only files that you name are run.
    data_root
        Folder with the data, if it has moved since the run was last started.
    """
    from recollect.runs import read_run

    config, last_data_root = read_run(folder, method)
    _run_and_print(
        config, folder, data_root=data_root or last_data_root, device=device, threads=threads,
        checkpoint_seconds=checkpoint_every,
    )  # fmt: skip


def _run_and_print(config: RunConfig, out: Path, **options: Any) -> None:
    from recollect.cli.console import stdout
    from recollect.cli.rendering.progress import ProgressBar
    from recollect.report.tables import print_result
    from recollect.runs import run as run_config

    console = stdout()
    console.quiet = read_launch().rank > 0
    command = shlex.join(["recollect", *sys.argv[1:]])
    with ProgressBar(console, config.method) as bar:
        result = run_config(config, out, observer=bar, command=command, heed_signals=True, shared=True, **options)
    print_result(console, result)
    console.print(f"The run is in [bold]{escape(str(out))}[/].")


@app.command(name="list")
def list_(*, stream: str | None = None, method: str | None = None, backbone: str | None = None) -> None:
    """Show all streams, methods, backbones and presets; with --stream or --method, all options and their defaults.

    Parameters
    ----------
    stream
        Show the options of runs on this stream.
    method
        Show the options of this method; a name, or a Python file as for `recollect run`.
    backbone
        Show the options of this backbone instead of the default one.
    """
    from recollect.cli.console import stdout
    from recollect.cli.rendering.listing import print_all, print_options

    if stream or method or backbone:
        print_options(stdout(), stream or "split-digits", method or "rfe", backbone)
    else:
        print_all(stdout())


@app.command
def demo(*, seeds: int = 1, out: Path = Path("runs/demo"), threads: Threads = 0) -> None:
    """Compare finetune, er, fsa, rfe-plus and joint on split-digits; about a minute per seed.

    Parameters
    ----------
    seeds
        Number of seeds; they count from 0.
    out
        Folder for the runs and the picture; finished runs in it are shown, not repeated.
    """
    from recollect.cli.console import stdout
    from recollect.cli.demo import show_demo

    show_demo(stdout(), seeds, out, threads)
