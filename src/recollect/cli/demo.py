"""What `recollect demo` does: four methods on split-digits, a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from recollect.cli.rendering.progress import ProgressBar
from recollect.errors import UserError
from recollect.escaping import escape
from recollect.report.figures import draw_matrices
from recollect.report.tables import print_comparison
from recollect.runs import resolve, run

METHODS = ("finetune", "er", "rfe", "joint")


def show_demo(console: Console, num_seeds: int, out: Path, threads: int) -> dict[str, list[dict[str, Any]]]:
    """Run what is not finished yet, print all results, and return them by method."""
    if num_seeds < 1:
        raise UserError(f"--seeds is a number of seeds, at least 1; got {num_seeds}")
    console.print(
        "split-digits: the handwritten digits of scikit-learn, in 5 tasks of 2 classes, learned one after the other.\n"
        "RFE keeps no images of earlier tasks; ER keeps 50.\n"
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
    draw_matrices({method: runs[0] for method, runs in results.items()}, picture)
    settings = results["rfe"][0]["config"]
    console.print(
        f"Settings: {settings['training']['epochs']} epochs per task, "
        f"{settings['method']['retrospect_epochs']} more for RFE's second stage, "
        f"batch {settings['training']['batch_size']}, "
        f"backbone {settings['backbone']['name']} of width {settings['backbone']['width']}, RFE with alpha "
        f"{settings['method']['alpha']:g}; everything is in each run's config.json.\n"
        f"Runs: {escape(str(out))}/<method>-<seed>   Picture: [bold]{escape(str(picture))}[/]"
    )
    return results
