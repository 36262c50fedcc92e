"""Results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from recollect.escaping import escape

Result = Mapping[str, Any]


def spread(values: Sequence[float | None], digits: int = 1) -> str:
    """Mean, with ± the standard deviation where there are several; a dash where undefined."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    text = f"{fmean(known):.{digits}f}"
    return f"{text} ± {stdev(known):.{digits}f}" if len(known) > 1 else text


def print_comparison(console: Console, results: Mapping[str, Sequence[Result]]) -> None:
    """Methods side by side, averaged over seeds."""
    table = Table(title="after the last task, in percent", title_justify="left")
    table.add_column("method", style="bold")
    for title in ("TIL accuracy", "TIL forgetting", "CIL accuracy", "CIL forgetting", "images kept"):
        table.add_column(title, justify="right")
    for method, found in results.items():
        cells = [
            spread([result[setting][figure] for result in found])
            for setting in ("til", "cil")
            for figure in ("average_accuracy", "forgetting")
        ]
        table.add_row(escape(method), *cells, "all" if method == "joint" else str(found[0]["memory"]["samples"]))
    console.print(table)
    console.print("TIL: the task is known. CIL: it is not. Forgetting: the best a task ever had, less what is left.")


def print_result(console: Console, result: Result) -> None:
    """One run's figures."""
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
            figures = (
                "average_accuracy",
                "incremental_accuracy",
                "forgetting",
                "backward_transfer",
                "forward_transfer",
            )
            table.add_row(title, *(spread([result[key][figure]]) for figure in figures))
    console.print(table)
    millions = {stage: count / 1e6 for stage, count in result["parameters"].items()}
    console.print(
        f"Parameters {millions['training']:.2f} M training, {millions['inference']:.2f} M inference; "
        f"{result['memory']['samples']} images kept; {sum(result['seconds'].values()):.0f} s."
    )
