"""The commands for many runs: sweep, tune, report, best."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from recollect.cli.base import CheckpointSeconds, Device, Flag, Paths, Precision, Texts, Threads, app


@app.command
def sweep(
    preset: str,
    *,
    out: Path | None = None,
    seeds: Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())] = None,
    only: Texts = None,
    set: Texts = None,
    also: Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())] = None,
    data_root: Path | None = None,
    precision: Precision = "auto",
    device: Device = "auto",
    threads: int = 0,
    workers: int = 1,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    cpus_per_run: float = 1.0,
    gpus_per_run: float = 0.0,
    checkpoint_every: CheckpointSeconds = 300.0,
    dry_run: Flag = False,
    show: Flag = False,
) -> None:
    """Execute all runs of a preset; finished runs are skipped, interrupted runs resume, failed runs are retried.

    Parameters
    ----------
    preset
        The name of a preset, as `recollect list` shows them, or the path of your own .toml file.
    out
        Folder for the runs; by default `runs/<preset>`, and then results anywhere in runs/ count as finished.
    seeds
        Seeds, instead of the preset's.
    only
        The methods of the preset to run, e.g. --only rfe er; by default all.
    set
        More options for every run, as for `recollect run`; stream.class_order=seeded makes the class order depend on
        the seed.
    also
        More folders with results: a run whose configuration is in one of them counts as finished.
    data_root
        Folder with the data, as for `recollect run`.
    precision
        As for `recollect run`.
    threads
        CPU threads per run; 0 leaves the choice to torch.
    workers
        Number of parallel runs, each in its own process if more than one.
    engine
        local, or ray: on a Ray cluster that shares the folder of the runs; requires recollect-rfe[ray].
    address
        The address of the Ray cluster; auto finds a running one; by default a local one is started.
    cpus_per_run
        CPUs that Ray reserves per run.
    gpus_per_run
        GPUs that Ray reserves per run.
    dry_run
        Only list the runs, with estimated minutes and gigabytes.
    show
        Only print the preset, to copy and edit it.
    """
    from recollect.cli.console import stdout
    from recollect.cli.rendering.sweep import Cluster, print_plan, run_sweep
    from recollect.runs import parse
    from recollect.sweeps import load_preset, preset_text

    if show:
        print(preset_text(preset), end="")
        return
    settings = parse(set or [])
    if out is None:
        name = Path(preset).stem if preset.endswith(".toml") else preset
        suffix = "".join(f",{setting}" for setting in set or [])
        out = Path("runs") / f"{name}{re.sub(r'[^A-Za-z0-9.,=_-]', '_', suffix)}"
        also = [*(also or []), Path("runs")]
    jobs = load_preset(preset).jobs(seeds, settings, precision, only)
    if dry_run:
        print_plan(stdout(), jobs, out, also or [], device, threads)
        return
    cluster = Cluster(address, cpus_per_run, gpus_per_run) if engine == "ray" else None
    options = {"data_root": data_root, "device": device, "threads": threads, "checkpoint_seconds": checkpoint_every}
    sys.exit(run_sweep(stdout(), jobs, out, also or [], workers, cluster, options))


@app.command
def tune(
    space: Path,
    *,
    out: Path,
    trials: int,
    data_root: Path | None = None,
    precision: Precision = "auto",
    device: Device = "auto",
    threads: Threads = 0,
    workers: int = 1,
    by: Literal["til", "cil"] = "til",
) -> None:
    """Search settings with Optuna by validation accuracy; the same command resumes. Requires recollect-rfe[optuna].

    Parameters
    ----------
    space
        A TOML file: stream, method, seeds, set, and [space] with values or ranges of settings (see docs/sweeps.md).
    out
        The folder of the search; trials are ordinary run folders in it.
    trials
        Total number of trials.
    data_root
        Folder with the data, as for `recollect run`.
    precision
        As for `recollect run`.
    workers
        Number of parallel runs, each in its own process if more than one.
    by
        The validation accuracy that decides: til, with the task known, or cil, among all classes.
    """
    from recollect.cli.console import stdout
    from recollect.escaping import escape
    from recollect.sweeps.tune import Trial, load_space
    from recollect.sweeps.tune import tune as search

    console = stdout()

    def print_trial(trial: Trial) -> None:
        chosen = escape(str(trial.chosen))
        console.print(
            f"trial {trial.number}: {chosen}, validation {by.upper()} {trial.validation:.2f} %", soft_wrap=True
        )

    options = {"data_root": data_root, "device": device, "threads": threads}
    search_space = load_space(space)
    best = search(
        search_space, out, trials, workers=workers, precision=precision, by=by, on_done=print_trial, **options
    )[0]
    console.print(
        f"Best of {trials}: [bold]{escape(str(best.chosen))}[/], validation {by.upper()} {best.validation:.2f} %; "
        "the test images were not used."
    )


@app.command
def report(runs: Paths, *, out: Path, title: str = "recollect report") -> None:
    """Write a report of finished runs: tables as Markdown, LaTeX and CSV, figures, and one HTML page.

    Parameters
    ----------
    runs
        Folders with results, or result files.
    out
        The folder of the report; its report.html works offline.
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
def best(runs: Paths, *, by: Literal["til", "cil"] = "til") -> None:
    """Show the settings with the highest validation accuracy among finished runs, per stream and method.

    Parameters
    ----------
    runs
        Folders with results.
    by
        Which accuracy decides: with the task known (til) or unknown (cil).
    """
    from recollect.cli.console import stdout
    from recollect.cli.rendering.sweep import print_best

    print_best(stdout(), runs, by)
