"""What `recollect sweep` and `best` print: the plan, a live table of all runs, and the best settings of a grid."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from rich.console import Console
from rich.live import Live
from rich.table import Table

from recollect.errors import UserError
from recollect.escaping import escape
from recollect.report.stats import spread
from recollect.runs import find_results
from recollect.storage.documents import parse_json
from recollect.sweeps import Job, Status, best_settings, engine_for, plan, sweep
from recollect.sweeps.select import By

MAX_ROWS = 30  # of the live table; the rest is counted


class Cluster(NamedTuple):
    """The Ray cluster, and the resources per run."""

    address: str | None
    cpus: float
    gpus: float


def print_plan(
    console: Console, jobs: Sequence[Job], out: Path, also: Sequence[Path], device: str, threads: int
) -> None:
    """All runs, whether they are finished, and their estimated cost."""
    from recollect.sweeps.estimate import FASTER, GPU_FLOPS, GPU_STEP_SECONDS, SLOWER, estimate

    statuses = plan(jobs, out, also, device)
    costs = estimate([status.job.config for status in statuses], device, threads)
    table = Table(box=None, padding=(0, 2))
    for title in ("run", "", "minutes", "GB"):
        table.add_column(title, no_wrap=title == "run", justify="right" if title in ("minutes", "GB") else "left")
    hours = gpu_hours = gigabytes = 0.0
    num_unknown = num_done = 0
    for status, cost in zip(statuses, costs, strict=True):
        done = status.state == "done"
        num_done += done
        num_unknown += cost is None
        if cost is not None and not done:
            hours, gpu_hours = hours + cost.hours, gpu_hours + cost.gpu_hours
            gigabytes += cost.gigabytes
        cells = ("?", "?") if cost is None else (f"{60 * cost.hours:.1f}", f"{cost.gigabytes:.2f}")
        table.add_row(
            escape(status.job.name), f"done: {escape(str(status.existing_result))}" if done else "to do", *cells
        )
    console.print(table)
    unknown = f"; {num_unknown} of unknown size" if num_unknown else ""
    console.print(
        f"{len(jobs)} runs, {num_done} done. To do: about [bold]{_duration(hours)}[/] on this device, one after the "
        f"other (between {_duration(hours / FASTER)} and {_duration(hours * SLOWER)}), and {gigabytes:.1f} GB on "
        f"disk{unknown}. Times are extrapolated from a few training steps of each backbone."
    )
    if gpu_hours:
        console.print(
            f"A GPU would need about {_duration(gpu_hours)}: a guess from the number of operations, at "
            f"{GPU_FLOPS / 1e12:.0f} TFLOP/s and at least {1000 * GPU_STEP_SECONDS:.0f} ms per step; not measured."
        )


def _duration(hours: float) -> str:
    if hours >= 1.5:
        return f"{hours:.1f} hours"
    return f"{60 * hours:.0f} minutes" if hours >= 2 / 60 else f"{3600 * hours:.0f} seconds"


def run_sweep(
    console: Console,
    jobs: Sequence[Job],
    out: Path,
    also: Sequence[Path],
    workers: int,
    cluster: Cluster | None,
    options: Mapping[str, Any],
) -> int:
    """Run a sweep and show its progress; returns the exit code."""
    statuses = plan(jobs, out, also, str(options["device"]))
    engine = engine_for(workers)
    if cluster is not None:
        from recollect.sweeps.cluster import on_ray

        engine = on_ray(cluster.address, cluster.cpus, cluster.gpus)
    if console.is_terminal:
        with Live(get_renderable=lambda: _table(statuses), console=console, refresh_per_second=1, transient=True):
            sweep(statuses, out, engine=engine, **options)
        console.print(_table(statuses, max_rows=len(statuses)))
    else:
        sweep(statuses, out, engine=engine, on_done=_status_printer(console, len(statuses)), **options)
    failed = [status for status in statuses if status.state == "failed"]
    num_done = sum(status.state == "done" for status in statuses)
    elsewhere = sum(s.existing_result is not None and not s.existing_result.is_relative_to(out) for s in statuses)
    other = f" ({elsewhere} of them in other folders, to be given to recollect report too)" if elsewhere else ""
    console.print(f"{num_done} of {len(statuses)} runs are done; they are in [bold]{escape(str(out))}[/]{other}.")
    for status in failed:
        reason = status.reasons[-1].strip().splitlines()[-1]
        console.print(f"[bold red]failed:[/] {escape(status.job.name)}: {escape(reason)}", soft_wrap=True)
    if failed:
        console.print(f"All errors are in {escape(str(out / 'sweep.json'))}; the same command retries the failed runs.")
    return 1 if failed else 0


def print_best(console: Console, runs: Sequence[Path], by: By = "til") -> None:
    """The settings with the best validation accuracy in each group of runs."""
    choices = best_settings(find_results(runs).values(), by)
    if not choices:
        raise UserError(f"no results with a validation accuracy in {', '.join(map(str, runs))}; give folders of a grid")
    table = Table("stream", "method", box=None, padding=(0, 2))
    has_conditions = any(choice.conditions for choice in choices)
    for title in ["among runs with"] * has_conditions + ["chosen"]:
        table.add_column(title, overflow="fold")
    for title in (f"validation {by.upper()}", "of"):
        table.add_column(title, justify="right")
    for choice in choices:
        settings = [_format(choice.conditions)] * has_conditions + [_format(choice.settings) or "defaults"]
        names = [escape(text) for text in (choice.stream, choice.method, *settings)]
        table.add_row(*names, f"{choice.validation:.2f}", str(choice.num_tried))
    console.print(table)
    console.print("Chosen by validation accuracy; the test images were not used.")


def _format(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


def _status_printer(console: Console, total: int) -> Callable[[Status], None]:
    num = 0

    def print_status(status: Status) -> None:
        nonlocal num
        num += 1
        console.print(
            f"{num}/{total} {escape(status.job.name)}: {status.state}{escape(_figures(status))}", soft_wrap=True
        )

    return print_status


def _table(statuses: Sequence[Status], max_rows: int = MAX_ROWS) -> Table:
    counts = {state: sum(s.state == state for s in statuses) for state in ("done", "running", "waiting", "failed")}
    title = ", ".join(f"{num} {state}" for state, num in counts.items() if num)
    table = Table("run", "", "", title=title, title_justify="left", box=None, padding=(0, 2))
    order = {"running": 0, "failed": 1, "waiting": 2, "done": 3}
    shown = sorted(statuses, key=lambda s: order[s.state])[:max_rows] if max_rows < len(statuses) else statuses
    colours = {"done": "green", "running": "bold", "failed": "red", "waiting": "dim"}
    for status in shown:
        detail = _progress(status.folder) if status.state == "running" else _figures(status).lstrip(", ")
        table.add_row(escape(status.job.name), f"[{colours[status.state]}]{status.state}[/]", escape(detail))
    if len(shown) < len(statuses):
        table.add_row(f"and {len(statuses) - len(shown)} more", "", "")
    return table


def _figures(status: Status) -> str:
    if status.result is None:
        return f", {status.reasons[-1].strip().splitlines()[-1]}" if status.reasons else ""
    averages = [status.result[name]["average_accuracy"] for name in ("til", "cil")]
    return f", TIL {spread(averages[:1])} %, CIL {spread(averages[1:])} %"


def _progress(folder: Path) -> str:
    """The latest progress that a run has logged."""
    path = folder / "events.jsonl"
    if not path.exists():
        return "starting"
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 4096, 0))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            event = parse_json(line, _Event)
        except ValueError:
            continue
        if event["event"] == "epoch" and {"phase", "epoch", "loss"} <= event.keys():
            return f"{event['phase']}, epoch {event['epoch']}, loss {event['loss']:.3f}"
        if event["event"] == "task" and "task" in event:
            return f"task {event['task']} learned"
    return "starting"


class _Event(TypedDict):
    event: str
    phase: NotRequired[str]
    epoch: NotRequired[int]
    loss: NotRequired[float]
    task: NotRequired[int]
