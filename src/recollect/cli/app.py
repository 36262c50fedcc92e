"""The commands: parse, call, print. Heavy imports wait until a command runs."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from cyclopts import CycloptsError, Parameter

from recollect.cli import exporting, practice, studies  # noqa: F401  (they add their commands)
from recollect.cli.base import app
from recollect.distributed.launch import read_launch
from recollect.escaping import escape, escape_controls

if TYPE_CHECKING:
    from rich.console import Console

    from recollect.runs import RunConfig

LET_THE_FIRST_SPEAK_SECONDS = 5.0  # torchrun ends all processes once one has ended


@app.command
def run(
    *,
    stream: str,
    method: str,
    out: Path,
    seed: int = 0,
    data_root: Path | None = None,
    set: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    backbone: str | None = None,
    tasks: int | None = None,
    train_per_class: int | None = None,
    fixed_heads: Annotated[bool, Parameter(negative=())] = False,
    measure_drift: Annotated[bool, Parameter(negative=())] = False,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    device: str = "auto",
    threads: int = 0,
    checkpoint_every: float = 300.0,
    live: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Learn a stream with a method and write a run folder: config.json, events.jsonl, result.json, checkpoint/.

    The same command goes on where an interrupted run stopped, and does nothing where it finished.

    Parameters
    ----------
    stream
        What to learn; `recollect list` names them.
    method
        How to learn it; `recollect list` names them.
    out
        The run folder, new or of the same configuration.
    seed
        Decides everything random: order, splits, initial weights, augmentation, memory.
    data_root
        Folder with the unpacked archives or the archives themselves; downloaded once if left out.
        For the stream `images` the folder of images.
    set
        Options as key=value, e.g. --set alpha=0 epochs=8 backbone.width=16; `recollect list --stream S --method M`
        shows all of them with their defaults.
    backbone
        Another backbone than the stream's own.
    tasks
        Number of tasks; short for --set stream.tasks=N.
    train_per_class
        A seeded subset of so many training images a class; short for --set stream.train_per_class=N.
    fixed_heads
        Allocate all heads up front, as the paper does; tasks to come can then be read, and forward transfer measured.
    measure_drift
        Also measure the RMSE of drifted and rectified features after each task.
    precision
        fp32, bf16 mixed precision, or auto: bf16 where the device computes in it natively, else fp32.
    device
        auto, cpu, cuda, cuda:1, mps.
    threads
        Processor threads; 0 leaves torch's own choice.
    checkpoint_every
        Seconds between checkpoints inside a phase; phases and tasks always end with one.
    live
        Also send figures as they come to tensorboard, mlflow or both; needs the extra of that name.
    force
        Overwrite the run in this folder.
    """
    from recollect.cli.console import stdout
    from recollect.runs import parse, resolve

    short = {"backbone": backbone, "stream.tasks": tasks, "stream.train_per_class": train_per_class}
    settings = {key: value for key, value in short.items() if value is not None} | parse(set or [])
    config = resolve(
        stream, method, seed, settings, fixed_heads=fixed_heads, measure_drift=measure_drift, precision=precision
    )
    words = {"data_root": data_root, "device": device, "threads": threads, "checkpoint_seconds": checkpoint_every}
    _do(stdout(), config, out, force=force, live=live or (), **words)


@app.command
def resume(
    folder: Path,
    *,
    data_root: Path | None = None,
    device: str = "auto",
    threads: int = 0,
    checkpoint_every: float = 300.0,
) -> None:
    """Go on with the run in a folder, from its last checkpoint to the same bits; a finished run is shown.

    Parameters
    ----------
    folder
        The run folder.
    data_root
        Where the data lies now, if not where it lay when the run was last started.
    device
        auto, cpu, cuda, cuda:1, mps.
    threads
        Processor threads; 0 leaves torch's own choice.
    checkpoint_every
        Seconds between checkpoints inside a phase; phases and tasks always end with one.
    """
    from recollect.cli.console import stdout
    from recollect.runs import begun

    config, last = begun(folder)
    words = {"data_root": data_root or last, "device": device, "threads": threads}
    _do(stdout(), config, folder, checkpoint_seconds=checkpoint_every, **words)


def _do(console: Console, config: RunConfig, out: Path, **words: Any) -> None:
    """Do a run, heeding signals, and show its result."""
    from recollect.cli.progress import ProgressBar
    from recollect.report.tables import print_result
    from recollect.runs import run as do_run

    console.quiet = not read_launch().is_main
    command = shlex.join(["recollect", *sys.argv[1:]])
    with ProgressBar(console, config.method) as bar:
        result = do_run(config, out, observer=bar, command=command, heed_signals=True, shared=True, **words)
    print_result(console, result)
    console.print(f"The run is in [bold]{escape(str(out))}[/].")


@app.command(name="list")
def list_(*, stream: str | None = None, method: str | None = None, backbone: str | None = None) -> None:
    """Show the streams, methods and backbones; with --stream and --method, every option and its default.

    Parameters
    ----------
    stream
        Show the options of runs on this stream.
    method
        Show the options of this method.
    backbone
        Show the options with this backbone instead of the stream's own.
    """
    from recollect.cli.console import stdout
    from recollect.cli.listing import print_all, print_options

    if stream or method or backbone:
        print_options(stdout(), stream or "split-digits", method or "rfe", backbone)
    else:
        print_all(stdout())


@app.command
def audit(
    folder: Path,
    *,
    against: Path | None = None,
    expect: Literal["none", "previous", "reservoir"] | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """List everything a run folder keeps, checkpoints included: every tensor, and every training sample.

    It says what is stored, not what weights may reveal.

    Parameters
    ----------
    folder
        The run folder.
    against
        A folder of images to look for in everything stored: as bytes or floats, normalised, mirrored, shifted, noisy.
    expect
        Fail (exit code 1) unless the folder holds no samples (none), samples of the last tasks only (previous), or no
        more than the memory's budget (reservoir); with --against also where an image is found outside such samples.
    json
        Print the whole list as JSON.
    """
    from recollect.cli.auditing import show_audit
    from recollect.cli.console import stdout

    sys.exit(show_audit(stdout(), folder, against, expect, as_json=json))


@app.command
def purge(folder: Path, *, task: int) -> None:
    """Remove a task's samples from every checkpoint of a run, verified by the audit.

    Parameters
    ----------
    folder
        The run folder.
    task
        The task's number, from 1.
    """
    from recollect.audit import purge as remove

    num = remove(folder, task)
    print(f"{num} samples of task {task} removed; the audit finds none left.")


@app.command
def demo(*, seeds: int = 1, out: Path = Path("runs/demo"), threads: int = 0) -> None:
    """See RFE hold on to old tasks where fine-tuning forgets: finetune, er, rfe and joint on split-digits.

    Parameters
    ----------
    seeds
        How many seeds to run, 0 up.
    out
        Where the run folders and the picture go; finished runs found there are shown, not repeated.
    threads
        Processor threads; 0 leaves torch's own choice.
    """
    # Read when torch loads: idle threads sleep instead of spinning, so that other work on the machine slows it less.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from recollect.cli.console import stdout
    from recollect.cli.demo import show_demo

    show_demo(stdout(), seeds, out, threads)


def main() -> None:
    """Run the command line; what a user can get wrong ends in a message and exit code 2."""
    from recollect.errors import OneProcessError, StoppedError, UserError

    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):  # names of files and classes may have letters that it cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(exit_on_error=False, print_error=read_launch().is_main)
    except CycloptsError:
        sys.exit(2)
    except UserError as error:
        refuse(error, always=isinstance(error, OneProcessError))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        refuse(f"{error}; check the path, its permissions and the space left")
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from the last checkpoint")
        sys.exit(130)
    except StoppedError as stopped:
        say("saved; the same command goes on from here")
        sys.exit(128 + stopped.number)


def refuse(message: object, *, always: bool = False) -> NoReturn:
    """Say why, and end with exit code 2."""
    say(message, always=always)
    if not read_launch().is_main:
        time.sleep(LET_THE_FIRST_SPEAK_SECONDS)
    sys.exit(2)


def say(message: object, *, always: bool = False) -> None:
    """Tell people; of several processes that have the same to say the first speaks."""
    if always or read_launch().is_main:
        print(f"recollect: {escape_controls(str(message), keep_lines=True)}", file=sys.stderr)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Warnings are for people: one line, no source."""
    say(message)
