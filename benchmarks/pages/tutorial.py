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
MONTHS = ("may", "june", "july")
COLOURS = ("#0072B2", "#E69F00", "#009E73")  # told apart by everyone
THRESHOLD = 0.5
"""The --min-probability of the page's example."""


def page() -> str:
    """The whole of docs/tutorial.md."""
    walk = load_json("tutorial/walk.json")
    seconds = [step["seconds"] for name, step in walk["steps"].items() if name.startswith("learn-")]
    steps = {name.replace("-", "_"): _console(step) for name, step in walk["steps"].items()}
    return fill(
        "tutorial.md",
        steps
        | {
            "seconds": ", ".join(f"{value:.0f}" for value in seconds),
            "commit": walk["commit"][:10],
            "comparison": _comparison(),
            "confidence": _confidence(walk["predictions"]),
            "calibration": _calibration_table(walk["predictions"]),
            "confusions": _confusions(walk["predictions"]),
        },
    )


def _console(step: dict[str, Any]) -> str:
    """A command with its output, shortened where it is long.

    Of `inspect --images` the last two lines, which compare images with the newest task; of a plain `check` the tasks.
    """
    command = step["command"].replace(" && ", "\n$ ")
    lines = [line.rstrip() for line in step["output"].strip("\n").splitlines()]
    shown = lines[-2:] if " --images " in step["command"] else lines
    if step["command"] == "recollect check model photos-test":
        tasks = next((i for i, line in enumerate(lines) if line.split()[:2] == ["class", "task"]), len(lines))
        shown = [*lines[:tasks], "…"]
    return "\n".join(["```console", f"$ {command}", *shown, "```"])


def _answers(predictions: dict[str, Any]) -> list[tuple[int, float, bool]]:
    """Of every test image: its month, the confidence, and whether the predicted class is correct."""
    month_of = {name: month for month, classes in enumerate(predictions["months"]) for name in classes}
    classes = predictions["classes"]
    return [(month_of[classes[true]], sure, true == predicted) for true, predicted, sure in predictions["rows"]]


def _confidence(predictions: dict[str, Any]) -> str:
    every = [is_right for _, _, is_right in _answers(predictions)]
    answered = [is_right for _, sure, is_right in _answers(predictions) if sure >= THRESHOLD]
    return (
        f"if all {len(every)} test images get an answer, {100 * fmean(every):.0f} % are correct; with a threshold of "
        f"{THRESHOLD:g}, {100 - 100 * len(answered) / len(every):.0f} % are answered `unknown`, and "
        f"{100 * fmean(answered):.0f} % of the others are correct"
    )


def _calibration_table(predictions: dict[str, Any]) -> str:
    """Mean confidence, accuracy and expected calibration error per month, after the last."""
    answers, rows = _answers(predictions), []
    groups = [[answer for answer in answers if answer[0] == month] for month in range(len(predictions["months"]))]
    for name, group in zip((*MONTHS, "all"), (*groups, answers), strict=True):
        sure, right = fmean(answer[1] for answer in group), fmean(answer[2] for answer in group)
        error = calibration_error([answer[1:] for answer in group])
        rows.append([name, str(len(group)), *(f"{100 * value:.1f}" for value in (sure, right, error))])
    return table(["test images", "number", "mean confidence", "accuracy", "calibration error"], rows)


def calibration_error(answers: list[tuple[float, bool]], bins: int = 10) -> float:
    """The mean distance between confidence and accuracy over bins of confidence, weighted by their images (ECE)."""
    groups: dict[int, list[tuple[float, bool]]] = {}
    for answer in answers:
        groups.setdefault(min(int(answer[0] * bins), bins - 1), []).append(answer)
    gaps = [abs(sum(sure for sure, _ in group) - sum(right for _, right in group)) for group in groups.values()]
    return sum(gaps) / len(answers)


def _confusions(predictions: dict[str, Any]) -> str:
    """How many errors stay within the month of the image."""
    month_of = {name: month for month, classes in enumerate(predictions["months"]) for name in classes}
    classes = predictions["classes"]
    wrong = [(true, predicted) for true, predicted, _ in predictions["rows"] if true != predicted]
    inside = sum(month_of[classes[true]] == month_of[classes[predicted]] for true, predicted in wrong)
    return (
        f"Of {len(wrong)} errors, {inside} are within the month of the image and {len(wrong) - inside} across months."
    )


def _comparison() -> str:
    """Three months learned in each way, or nothing where that has not been measured."""
    results = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / "tutorial").glob("*-[0-9].json"))
    ]
    if not results:
        return ""
    rows = []
    for way in sorted(
        {result["way"] for result in results}, key=lambda way: ("pretrained" not in way, "adapted" in way)
    ):
        group = [result for result in results if result["way"] == way]
        cells = [
            spread([fmean(check[kind] for check in result["checks"]) for result in group])
            for kind in ("within", "across")
        ]
        seconds = fmean(value for result in group for value in result["learn_seconds"])
        rows.append([way, *cells, f"{seconds / 60:.1f}", str(len(group))])
    commits = ", ".join(sorted({result["commit"][:10] for result in results}))
    head = ["backbone", "task known", "task unknown", "minutes per month", "seeds"]
    return fill("tutorial-comparison.md", {"table": table(head, rows), "commits": commits})


def pictures() -> Iterator[Picture]:
    walk = load_json("tutorial/walk.json")
    yield Picture("tutorial-months.png", walk["checks"], lambda path: draw_months(walk["checks"], path))
    predictions = walk["predictions"]
    yield Picture("tutorial-sure.png", predictions, lambda path: draw_confidence(predictions, path))
    yield Picture("tutorial-confusion.png", predictions, lambda path: draw_confusion(predictions, path))


def draw_months(checks: dict[str, dict[str, float]], path: Path) -> None:
    """Accuracy on each month's test images after each month."""
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    months = list(checks)
    for number, (name, accuracies) in enumerate(checks.items()):
        positions = [i + 0.26 * (number - 1) for i, month in enumerate(months) if month in accuracies]
        bars = axes.bar(positions, list(accuracies.values()), 0.24, label=f"after {name}", color=COLOURS[number])
        axes.bar_label(bars, fmt="%.0f", fontsize=9)
    axes.set_xticks(range(len(months)), [f"{month}'s test images" for month in months])
    axes.set_ylim(0, 112)
    axes.set_ylabel("accuracy, percent (task known)")
    axes.legend(fontsize=9, loc="upper center", ncol=3)
    figure.savefig(path, dpi=110)


def draw_confidence(predictions: dict[str, Any], path: Path) -> None:
    """Left: accuracy against confidence, per month. Right: share of answers and their accuracy against the threshold."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    reliability, threshold = figure.subplots(1, 2)
    answers = _answers(predictions)
    for month, name in enumerate(MONTHS):
        groups: dict[int, list[tuple[int, float, bool]]] = {}
        for answer in answers:
            if answer[0] == month:
                groups.setdefault(min(int(answer[1] * 5), 4), []).append(answer)
        points = [
            (100 * fmean(answer[1] for answer in group), 100 * fmean(answer[2] for answer in group))
            for _, group in sorted(groups.items())
            if len(group) >= 10
        ]
        reliability.plot(*zip(*points, strict=True), "o-", color=COLOURS[month], label=f"{name}'s test images")
    reliability.plot([0, 100], [0, 100], ":", color="grey", label="perfectly calibrated")
    reliability.set(
        xlabel="confidence, percent", ylabel="accuracy, percent", xlim=(0, 100), ylim=(0, 105),
        title="Calibration after July (bins of at least 10 images)",
    )  # fmt: skip
    reliability.legend(fontsize=9, loc="upper left")
    thresholds = [step / 20 for step in range(20)]
    answered = [[right for _, sure, right in answers if sure >= limit] for limit in thresholds]
    shares = [100 * len(group) / len(answers) for group in answered]
    accuracies = [100 * fmean(group) if group else float("nan") for group in answered]
    threshold.plot(thresholds, shares, label="answered", color="tab:grey")
    threshold.plot(thresholds, accuracies, label="correct among answered", color="tab:blue")
    threshold.set(xlabel="--min-probability", ylabel="percent", ylim=(0, 105), title="Effect of a threshold")
    threshold.legend(fontsize=9, loc="lower left")
    figure.savefig(path, dpi=110)


def draw_confusion(predictions: dict[str, Any], path: Path) -> None:
    """Test images of each class (rows) by the class they are taken for; lines separate the months."""
    classes = predictions["classes"]
    counts = [[0] * len(classes) for _ in classes]
    for true, predicted, _ in predictions["rows"]:
        counts[true][predicted] += 1
    figure = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    shown = [[100 * number / max(sum(row), 1) for number in row] for row in counts]
    image = axes.imshow(shown, cmap="Blues", vmin=0, vmax=100)
    axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=8)
    axes.set_yticks(range(len(classes)), classes, fontsize=8)
    border = -0.5
    for month in predictions["months"][:-1]:
        border += len(month)
        axes.axhline(border, color="black", linewidth=0.8)
        axes.axvline(border, color="black", linewidth=0.8)
    axes.set(xlabel="predicted class", ylabel="class of the test image")
    figure.colorbar(image, ax=axes, label="percent of the class's test images", shrink=0.8)
    figure.savefig(path, dpi=110)
