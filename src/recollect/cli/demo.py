"""`recollect demo`: four methods on split-digits, a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from recollect.cli.progress import ProgressBar
from recollect.errors import UserError
from recollect.escaping import escape
from recollect.report.figures import draw_matrices
from recollect.report.tables import print_comparison
from recollect.runs import resolve, run

METHODS = ("finetune", "er", "rfe", "joint")


def show_demo(console: Console, num_seeds: int, out: Path, threads: int) -> dict[str, list[dict[str, Any]]]:
    """Run what is not there yet, show all of it, and return the results by method."""
    if num_seeds < 1:
        raise UserError(f"--seeds counts seeds, got {num_seeds}")
    console.print(
        "split-digits: the handwritten digits that come with scikit-learn, in 5 tasks of 2 classes.\n"
        "The tasks come one after the other. RFE keeps none of their images; ER keeps 50.\n"
    )
    results: dict[str, list[dict[str, Any]]] = {}
    for method in METHODS:
        results[method] = []
        for seed in range(num_seeds):
            command = f"recollect run --stream split-digits --method {method} --seed {seed} --out {out}/{method}-{seed}"
            with ProgressBar(console, method) as bar:
                result = run(
                    resolve("split-digits", method, seed),
                    out / f"{method}-{seed}",
                    threads=threads,
                    observer=bar,
                    command=command,
                    heed_signals=True,
                )
            results[method].append(result)
    print_comparison(console, results)
    picture = out / "accuracy-matrices.png"
    draw_matrices({method: found[0] for method, found in results.items()}, picture)
    settings = results["rfe"][0]["config"]
    console.print(
        f"Settings: {settings['training']['epochs']} epochs a task, "
        f"{settings['method']['retrospect_epochs']} more for RFE's second stage, "
        f"batch {settings['training']['batch_size']}, "
        f"backbone {settings['backbone']['name']} of width {settings['backbone']['width']}, RFE with alpha "
        f"{settings['method']['alpha']:g}; everything is in each run's config.json.\n"
        f"Runs: {escape(str(out))}/<method>-<seed>   Picture: [bold]{escape(str(picture))}[/]"
    )
    return results
