"""What `recollect demo` does: five methods on split-digits, a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from recollect.cli.rendering.progress import ProgressBar
from recollect.errors import UserError
from recollect.escaping import escape
from recollect.report.figures import draw_matrices
from recollect.report.tables import print_comparison
from recollect.runs import command_of, resolve, run

METHODS = ("finetune", "er", "fsa", "rfe-plus", "joint")
SETTINGS = {"epochs": 10, "backbone.width": 8}  # a smaller network and fewer epochs than the stream's default
RFE_SETTINGS = {"retrospect_epochs": 20}


def compare_with_fsa(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """How rfe-plus does against a much simpler method if the task is unknown."""
    ours, theirs = (
        sum(result["cil"]["average_accuracy"] for result in results[method]) / len(results[method])
        for method in ("rfe-plus", "fsa")
    )
    gap = f"{abs(ours - theirs):.1f} points {'below' if theirs < ours else 'above'} rfe-plus"
    return f"If the task is unknown, fsa, which is much simpler, is {gap} here; docs/results-unknown.md has other data."


def show_demo(console: Console, num_seeds: int, out: Path, threads: int) -> dict[str, list[dict[str, Any]]]:
    """Run what is not finished yet, print all results, and return them by method."""
    if num_seeds < 1:
        raise UserError(f"--seeds is a number of seeds, at least 1; got {num_seeds}")
    console.print(
        "split-digits: the handwritten digits of scikit-learn, in 5 tasks of 2 classes, learned one after the other.\n"
        "rfe-plus keeps no images of earlier tasks; er keeps 50; fsa trains on the first task only.\n"
    )
    results: dict[str, list[dict[str, Any]]] = {}
    for method in METHODS:
        results[method] = []
        settings = SETTINGS | (RFE_SETTINGS if method == "rfe-plus" else {})
        for seed in range(num_seeds):
            config, folder = resolve("split-digits", method, seed, settings), out / f"{method}-{seed}"
            with ProgressBar(console, method) as bar:
                result = run(
                    config,
                    folder,
                    threads=threads,
                    observer=bar,
                    command=command_of(config, folder, threads),
                    heed_signals=True,
                )
            results[method].append(result)
    print_comparison(console, results)
    picture = out / "accuracy-matrices.png"
    draw_matrices({method: runs[0] for method, runs in results.items()}, picture)
    used = results["rfe-plus"][0]["config"]
    console.print(
        f"Settings: {used['training']['epochs']} epochs per task, "
        f"{used['method']['retrospect_epochs']} more for RFE's second stage, "
        f"batch size {used['training']['batch_size']}, "
        f"backbone {used['backbone']['name']} of width {used['backbone']['width']}, RFE with alpha "
        f"{used['method']['alpha']:g}. Each run's config.json has all settings.\n"
        f"{compare_with_fsa(results)}\n"
        f"Runs: {escape(str(out))}/<method>-<seed>   Picture: [bold]{escape(str(picture))}[/]"
    )
    return results
