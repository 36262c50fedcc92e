"""Results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from recollect.escaping import escape
from recollect.report.stats import spread

Result = Mapping[str, Any]
METRICS = ("average_accuracy", "incremental_accuracy", "forgetting", "backward_transfer", "forward_transfer")


def print_comparison(console: Console, results: Mapping[str, Sequence[Result]]) -> None:
    """Methods side by side, averaged over seeds."""
    table = Table(title="after the last task, in percent", title_justify="left")
    table.add_column("method", style="bold")
    for title in ("TIL accuracy", "TIL forgetting", "CIL accuracy", "CIL forgetting", "images kept"):
        table.add_column(title, justify="right")
    for method, runs in results.items():
        cells = [
            spread([result[evaluation][metric] for result in runs])
            for evaluation in ("til", "cil")
            for metric in ("average_accuracy", "forgetting")
        ]
        table.add_row(escape(method), *cells, "all" if method == "joint" else str(runs[0]["memory"]["samples"]))
    console.print(table)
    console.print("TIL: the task is known. CIL: it is not. Forgetting: a task's best accuracy minus its last.")


def print_result(console: Console, result: Result) -> None:
    """The metrics of one run."""
    table = Table(title="after the last task, in percent", title_justify="left")
    table.add_column("")
    for title in ("average", "incremental", "forgetting", "backward", "forward"):
        table.add_column(title, justify="right")
    names = {
        "til": "task-incremental",
        "cil": "class-incremental",
        "til_without_chain": "task-incremental without the chain",
        "task_prediction": "task predicted correctly",
    }
    for key, title in names.items():
        if result.get(key) is not None:
            table.add_row(title, *(spread([result[key][metric]]) for metric in METRICS))
    console.print(table)
    millions = {stage: count / 1e6 for stage, count in result["parameters"].items()}
    console.print(
        f"Parameters {millions['training']:.2f} M training, {millions['inference']:.2f} M inference; "
        f"{result['memory']['samples']} images kept; {sum(result['seconds'].values()):.0f} s."
    )
