"""The commands about many runs: sweep, best, tune, report."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from recollect.cli.base import app


@app.command
def sweep(
    preset: str,
    *,
    out: Path | None = None,
    seeds: Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())] = None,
    set: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    also: Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())] = None,
    data_root: Path | None = None,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    device: str = "auto",
    threads: int = 0,
    workers: int = 1,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    cpus_per_run: float = 1.0,
    gpus_per_run: float = 0.0,
    checkpoint_every: float = 300.0,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    show: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Do all runs of a preset: skip what is done, go on with what was cut, try again what failed.

    Parameters
    ----------
    preset
        A preset's name, as `recollect list` shows them, or a file of one's own that ends in .toml.
    out
        Where the run folders go; if left out runs/<preset>, and results anywhere under runs/ count as done.
    seeds
        Other seeds than the preset's.
    set
        Further options for every run, as of `recollect run`; stream.class_order=seeded lets seeds vary the class order.
    also
        More folders with results: a run whose configuration is found there is done.
    data_root
        Folder with the data, as of `recollect run`.
    precision
        As of `recollect run`.
    device
        auto, cpu, cuda, cuda:1, mps.
    threads
        Processor threads of each run; 0 leaves torch's own choice.
    workers
        Runs at a time, each in a process of its own if more than one.
    engine
        local, or ray: on a Ray cluster that shares the folder of the runs; needs the extra recollect-rfe[ray].
    address
        The Ray cluster's address; auto finds one that runs here, left out a local one is started.
    cpus_per_run
        Processors that Ray reserves for a run.
    gpus_per_run
        GPUs that Ray reserves for a run.
    checkpoint_every
        Seconds between checkpoints inside a phase.
    dry_run
        List the runs with estimated hours and gigabytes, and do nothing.
    show
        Print the preset, to be copied and edited, and do nothing.
    """
    # Read when torch loads: idle threads sleep instead of spinning, so that runs slow each other less.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from recollect.cli.console import stdout
    from recollect.cli.sweeping import Cluster, do_sweep, print_plan
    from recollect.runs import parse
    from recollect.sweeps import load_preset, preset_text

    if show:
        print(preset_text(preset), end="")
        return
    settings = parse(set or [])
    if out is None:
        name = Path(preset).stem if preset.endswith(".toml") else preset
        told = "".join(f",{word}" for word in set or [])
        out = Path("runs") / f"{name}{re.sub(r'[^A-Za-z0-9.,=_-]', '_', told)}"
        also = [*(also or []), Path("runs")]
    jobs = load_preset(preset).jobs(seeds, settings, precision)
    if dry_run:
        print_plan(stdout(), jobs, out, also or [], device, threads)
        return
    cluster = Cluster(address, cpus_per_run, gpus_per_run) if engine == "ray" else None
    words = {"data_root": data_root, "device": device, "threads": threads, "checkpoint_seconds": checkpoint_every}
    sys.exit(do_sweep(stdout(), jobs, out, also or [], workers, cluster, words))


@app.command
def tune(
    space: Path,
    *,
    out: Path,
    trials: int,
    data_root: Path | None = None,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    device: str = "auto",
    threads: int = 0,
) -> None:
    """Search settings with Optuna by validation accuracy; the same command goes on. Needs recollect-rfe[optuna].

    Parameters
    ----------
    space
        A TOML file: stream, method, seeds, set, and [space] with values or ranges of settings (see docs/sweeps.md).
    out
        The folder of the search; trials are ordinary run folders in it.
    trials
        How many trials there are to be in all.
    data_root
        Folder with the data, as of `recollect run`.
    precision
        As of `recollect run`.
    device
        auto, cpu, cuda, cuda:1, mps.
    threads
        Processor threads; 0 leaves torch's own choice.
    """
    from recollect.cli.console import stdout
    from recollect.escaping import escape
    from recollect.sweeps.tune import Trial, load_space
    from recollect.sweeps.tune import tune as search

    console = stdout()

    def tell(trial: Trial) -> None:
        chosen = escape(str(trial.chosen))
        console.print(f"trial {trial.number}: {chosen}, validation {trial.validation:.2f} %", soft_wrap=True)

    words = {"data_root": data_root, "device": device, "threads": threads}
    best = search(load_space(space), out, trials, precision=precision, told=tell, **words)[0]
    figures = f"validation {best.validation:.2f} %; test was not looked at."
    console.print(f"Best of {trials}: [bold]{escape(str(best.chosen))}[/], {figures}")


@app.command
def report(runs: list[Path], *, out: Path, title: str = "recollect report") -> None:
    """Write a report of finished runs: tables as Markdown, LaTeX and CSV, pictures, and one page with all of it.

    Parameters
    ----------
    runs
        Folders with results, or result files.
    out
        The folder of the report; report.html in it opens anywhere, without a network.
    title
        The page's title.
    """
    from recollect.cli.console import stdout
    from recollect.errors import UserError
    from recollect.escaping import escape
    from recollect.report.write import write_report
    from recollect.runs import find_results

    missing = [path for path in runs if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]} does not exist; give folders with results")
    results = find_results(runs)
    paths = write_report(results.values(), out, title)
    console = stdout()
    console.print(f"{len(results)} results, {len(paths)} files. Open [bold]{escape(str(paths[0]))}[/].")


@app.command
def best(runs: list[Path]) -> None:
    """Of the runs of a grid, show the settings with the best validation accuracy for each stream and method.

    Parameters
    ----------
    runs
        Folders with results.
    """
    from recollect.cli.console import stdout
    from recollect.cli.sweeping import print_best

    print_best(stdout(), runs)
