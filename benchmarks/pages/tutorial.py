"""docs/tutorial.md and its charts, from the recorded commands under results/tutorial/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pages.experiments import RESULTS, ROOT, load_json
from pages.markdown import fill, table
from pictures import Picture
from recollect.report.stats import spread

PAGE = ROOT / "docs" / "tutorial.md"
THRESHOLD = 0.5
"""The --min-probability of the page's example."""


def page() -> str:
    """The whole of docs/tutorial.md."""
    walk = load_json("tutorial/walk.json")
    minutes = [step["seconds"] / 60 for name, step in walk["steps"].items() if name.startswith("learn-")]
    steps = {name.replace("-", "_"): _console(step) for name, step in walk["steps"].items()}
    return fill(
        "tutorial.md",
        steps
        | {
            "minutes": ", ".join(f"{value:.0f}" for value in minutes),
            "commit": walk["commit"][:10],
            "comparison": fill("tutorial-backbones.md", {"table": _backbone_table()}),
            "confidence": _confidence(walk["predictions"]),
        },
    )


def _console(step: dict[str, Any]) -> str:
    """A command with its output; of `inspect --images` the last two lines, which compare images with the newest task."""
    command = step["command"].replace(" && ", "\n$ ")
    lines = [line.rstrip() for line in step["output"].strip("\n").splitlines()]
    shown = lines[-2:] if " --images " in step["command"] else lines
    return "\n".join(["```console", f"$ {command}", *shown, "```"])


def _confidence(predictions: list[list[float]]) -> str:
    answered = [is_right for probability, is_right in predictions if probability >= THRESHOLD]
    every = [is_right for _, is_right in predictions]
    return (
        f"of {len(every)} test images {100 * fmean(every):.0f} % are correct when all are answered; with a threshold of "
        f"{THRESHOLD:g}, {100 * len(answered) / len(every):.0f} % are answered and {100 * fmean(answered):.0f} % of those "
        "are correct"
    )


def _backbone_table() -> str:
    """Accuracy with and without pretrained weights."""
    by_backbone: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / "tutorial").glob("*-[0-9].json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        by_backbone.setdefault(result["backbone"], []).append(result)
    rows = []
    for name, results in sorted(by_backbone.items(), key=lambda item: ("ImageNet" not in item[0], item[0])):
        checks = [{check["task"]: check for check in result["checks"]} for result in results]
        cells = [spread([c[task][kind] for c in checks]) for task in ("may", "june") for kind in ("within", "across")]
        minutes = fmean(result["learn_seconds"] for result in results) / 60
        rows.append([name, *cells, f"{minutes:.0f}", str(len(results))])
    head = ["backbone", "May, task known", "May, unknown", "June, task known", "June, unknown", "minutes", "seeds"]
    return table(head, rows)


def pictures() -> Iterator[Picture]:
    walk = load_json("tutorial/walk.json")
    yield Picture("tutorial-months.png", walk["checks"], lambda path: draw_months(walk["checks"], path))
    yield Picture("tutorial-sure.png", walk["predictions"], lambda path: draw_confidence(walk["predictions"], path))


def draw_months(checks: dict[str, dict[str, float]], path: Path) -> None:
    """Accuracy on each month's test images after each month."""
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    months = list(checks)
    for number, (name, accuracies) in enumerate(checks.items()):
        positions = [i + 0.26 * (number - 1) for i, month in enumerate(months) if month in accuracies]
        bars = axes.bar(positions, list(accuracies.values()), 0.24, label=f"after {name}", color=f"C{number}")
        axes.bar_label(bars, fmt="%.0f", fontsize=9)
    axes.set_xticks(range(len(months)), [f"{month}'s test images" for month in months])
    axes.set_ylim(0, 112)
    axes.set_ylabel("accuracy, percent (task known)")
    axes.legend(fontsize=9, loc="upper center", ncol=3)
    figure.savefig(path, dpi=110)


def draw_confidence(predictions: list[list[float]], path: Path) -> None:
    """Left: accuracy against probability. Right: share of answers and their accuracy against the threshold."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    reliability, threshold = figure.subplots(1, 2)
    bins = [[p for p in predictions if low / 10 <= p[0] < (low + 1) / 10 + (low == 9)] for low in range(10)]
    for i, group in enumerate(bins):
        if group:
            right = 100 * sum(p[1] for p in group) / len(group)
            reliability.bar(10 * i + 5, right, 9, color="tab:blue")
            reliability.text(10 * i + 5, right + 1.5, str(len(group)), ha="center", fontsize=8)
    reliability.plot([0, 100], [0, 100], "k:", label="perfectly calibrated")
    reliability.set(
        xlabel="confidence, percent",
        ylabel="accuracy, percent",
        xlim=(0, 100),
        ylim=(0, 105),
        title="Calibration (number of images above each bin)",
    )
    reliability.legend(fontsize=9, loc="upper left")
    thresholds = [step / 20 for step in range(20)]
    answered = [[p[1] for p in predictions if p[0] >= limit] for limit in thresholds]
    shares = [100 * len(group) / len(predictions) for group in answered]
    accuracies = [100 * fmean(group) if group else float("nan") for group in answered]
    threshold.plot(thresholds, shares, label="answered", color="tab:grey")
    threshold.plot(thresholds, accuracies, label="correct among answered", color="tab:green")
    threshold.set(xlabel="--min-probability", ylabel="percent", ylim=(0, 105), title="Effect of a threshold")
    threshold.legend(fontsize=9, loc="lower left")
    figure.savefig(path, dpi=110)
