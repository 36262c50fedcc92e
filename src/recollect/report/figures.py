"""Pictures of results, drawn without a display."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from recollect.report.collect import Experiment, Result
from recollect.report.query import accuracy_over_time, accuracy_over_time_per_seed, select
from recollect.report.sheets import slug, slug_of
from recollect.report.stats import all_defined, half_width, spread
from recollect.report.style import DRIFTED, ORIGINAL, RECTIFIED, style_of
from recollect.report.summary import default_variants
from recollect.storage import write_bytes

MAX_MATRICES = 6  # side by side in one picture
MAX_CHARACTERS = 48
LIGHT_FROM = 55  # percent; above it cells are bright and take dark text


def draw_matrices(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Accuracy matrices of several methods: a row after each task, a column for each task; TIL above, CIL below."""
    settings = {"til": "task known", "cil": "task unknown"}
    figure = _figure(2.9 * len(results) + 0.6, 6.2)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(hspace=0.08)  # type: ignore[call-arg]
    grid = figure.subplots(len(settings), len(results), squeeze=False, sharex=True, sharey=True)
    cells = [
        c for result in results.values() for s in settings for row in result[s]["matrix"] for c in row if c is not None
    ]
    top = 10 * math.ceil(max(cells, default=100.0) / 10)
    image = None
    for row, (setting, title) in zip(grid, settings.items(), strict=True):
        for axes, (method, result) in zip(row, results.items(), strict=True):
            matrix = result[setting]["matrix"]
            values = [[float("nan") if cell is None else cell for cell in line] for line in matrix]
            image = axes.imshow(values, vmin=0, vmax=top, cmap="viridis")
            average = spread([result[setting]["average_accuracy"]])
            axes.set_title(f"{method}, {title}\naverage {average} %", fontsize=10, parse_math=False)
            _count(axes, len(matrix))
            for i, line in enumerate(matrix):
                for j, cell in enumerate(line):
                    if cell is not None and len(matrix) <= 10:
                        colour = "black" if 100 * cell > LIGHT_FROM * top else "white"
                        axes.text(j, i, f"{cell:.0f}", ha="center", va="center", color=colour, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("accuracy on task")
    for axes in grid[:, 0]:
        axes.set_ylabel("after learning task")
    assert image is not None
    figure.colorbar(image, ax=grid, label="percent", shrink=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    _save(figure, path)


def draw_experiment(experiment: Experiment, folder: Path) -> Iterator[Path]:
    """Draw every picture that an experiment's results allow, curves of the methods that the page shows first."""
    folder.mkdir(parents=True, exist_ok=True)
    start = slug_of(experiment)
    matrices = {short(variant.full_label): variant.results[0] for variant in experiment.variants}
    for first in range(0, len(matrices), MAX_MATRICES):
        path = folder / f"{start}-matrices{f'-{first // MAX_MATRICES + 1}' if first else ''}.png"
        draw_matrices(dict(list(matrices.items())[first : first + MAX_MATRICES]), path)
        yield path
    labels = {v.full_label for v in default_variants(experiment)}
    shown = select(experiment, lambda v: v.full_label in labels)
    yield draw_curves(shown, folder / f"{start}-curves.png")
    yield draw_tradeoff(shown, folder / f"{start}-tradeoff.png")
    for variant in experiment.variants:
        measured = [r for r in variant.results if r.get("drift") and r["drift"]["rectified"][-1][0] is not None]
        name = slug(variant.full_label)
        for result in measured[:1]:
            yield draw_rmse(result, short(variant.full_label), folder / f"{start}-{name}-rmse.png")
            if result["drift"].get("scatter"):
                yield draw_scatter(result, short(variant.full_label), folder / f"{start}-{name}-pca.png")


def draw_curves(experiment: Experiment, path: Path) -> Path:
    """Average accuracy over the tasks learned so far, task known and unknown; mean over seeds, 95 % interval."""
    figure = _figure(11, 4.2)
    axes = figure.subplots(1, 2, sharey=True)
    for panel, (setting, title) in zip(axes, {"til": "task known", "cil": "task unknown"}.items(), strict=True):
        seen: Counter[str] = Counter()
        for variant in (v for v in experiment.variants if v.method != "joint"):
            means = accuracy_over_time(variant, setting)
            line = ("-", "--", ":", "-.")[seen[variant.method] % 4]  # variants of a method have its colour
            seen[variant.method] += 1
            width, (colour, marker) = 2.5 if variant.method.startswith("rfe") else 1.2, style_of(variant.results[0])
            panel.plot(range(1, len(means) + 1), means, line, marker=marker, markersize=4, linewidth=width,
                       color=colour, label=short(variant.full_label))  # fmt: skip
            if len(variant.seeds) > 1:
                columns = zip(*accuracy_over_time_per_seed(variant, setting), strict=True)
                halves = [half_width(column) or 0.0 for column in columns]
                low, high = ([m + sign * h for m, h in zip(means, halves, strict=True)] for sign in (-1, 1))
                panel.fill_between(range(1, len(means) + 1), low, high, color=colour, alpha=0.1, linewidth=0)
        panel.set_title(title)
        panel.set_xlabel("tasks learned")
        panel.set_ylim(bottom=0)
        panel.set_xticks(range(1, experiment.num_tasks + 1))
    axes[0].set_ylabel("average accuracy, percent")
    _add_legend(axes[1])
    return _save(figure, path)


def draw_tradeoff(experiment: Experiment, path: Path) -> Path:
    """Accuracy against the bytes of images kept; joint training, which needs all images, as a line."""
    figure = _figure(7, 4.5)
    axes = figure.subplots()
    for variant in experiment.variants:
        values = all_defined(variant.values("til", "average_accuracy"))
        if values:
            kept, (colour, marker) = variant.results[0]["memory"]["bytes"] / 2**20, style_of(variant.results[0])
            name = short(variant.full_label)
            if variant.method == "joint":
                axes.axhline(fmean(values), color=colour, linestyle=":", label=f"{name}, all images")
            else:
                axes.plot(kept, fmean(values), marker, color=colour, label=name)
    axes.set_xlabel("megabytes of images kept")
    axes.set_ylabel("task-incremental accuracy, percent")
    _add_legend(axes)
    return _save(figure, path)


def draw_rmse(result: Result, title: str, path: Path) -> Path:
    """Drifted beside rectified, on one scale; bright cells are close to the original, as in accuracy matrices."""
    drift = result["drift"]
    figure = _figure(9, 4)
    grid = figure.subplots(1, 2)
    most = max(cell for row in drift["drifted"] for cell in row if cell is not None)
    image = None
    for axes, kind in zip(grid, ("drifted", "rectified"), strict=True):
        values = [[float("nan") if cell is None else cell for cell in row] for row in drift[kind]]
        image = axes.imshow(values, vmin=0, vmax=most, cmap="viridis_r")
        axes.set_title(f"{title}, {kind}", fontsize=10, parse_math=False)
        axes.set_xlabel("images of task")
        _count(axes, len(values))
    grid[0].set_ylabel("after learning task")
    assert image is not None
    figure.colorbar(image, ax=grid, label="RMSE to the original features")
    return _save(figure, path)


def draw_scatter(result: Result, title: str, path: Path) -> Path:
    """Original, drifted and rectified features of each old task after the last, on their principal axes."""
    scatter: Sequence[Mapping[str, Any]] = [task for task in result["drift"]["scatter"][:-1] if task["drifted"]]
    figure = _figure(3.2 * len(scatter), 3.6)
    grid = figure.subplots(1, len(scatter), squeeze=False)[0]
    for number, (axes, task) in enumerate(zip(grid, scatter, strict=True)):
        for kind, colour in (("original", ORIGINAL), ("drifted", DRIFTED), ("rectified", RECTIFIED)):
            points = task[kind] if kind == "original" else task[kind][-1]
            if points:
                axes.scatter(*zip(*points, strict=True), s=9, alpha=0.6, color=colour, label=kind)
        drifted, rectified = (result["drift"][kind][-1][number] for kind in ("drifted", "rectified"))
        axes.set_title(f"task {number + 1}: RMSE {drifted:.2f} → {rectified:.2f}", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.axes[0].legend(fontsize=7)
    figure.suptitle(f"{title}: features after the last task", fontsize=10, parse_math=False)
    return _save(figure, path)


def short(text: str) -> str:
    """As much of a name as a picture has room for."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _add_legend(axes: Any) -> None:
    """Right of the axes, where it covers nothing; none without labels."""
    if not axes.get_legend_handles_labels()[1]:
        return
    for text in axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5)).get_texts():
        text.set_parse_math(False)


def _count(axes: Any, num: int) -> None:
    shown = range(0, num, math.ceil(num / 10))  # more labels would touch
    axes.set_xticks(shown, [str(i + 1) for i in shown])
    axes.set_yticks(shown, [str(i + 1) for i in shown])


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> Path:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110, bbox_inches="tight")
    write_bytes(path, drawn.getvalue())
    return path
