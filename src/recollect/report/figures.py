"""Pictures of results, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

LIGHT_FROM = 55  # percent; above it cells are bright and take dark text


def draw_matrices(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Accuracy matrices of several methods: a row after each task, a column for each task; TIL above, CIL below."""
    settings = {"til": "task known", "cil": "task unknown"}
    figure = Figure(figsize=(2.9 * len(results) + 0.6, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(hspace=0.08)  # type: ignore[call-arg]
    grid = figure.subplots(len(settings), len(results), squeeze=False, sharex=True, sharey=True)
    image = None
    for row, (setting, title) in zip(grid, settings.items(), strict=True):
        for axes, (method, result) in zip(row, results.items(), strict=True):
            matrix = result[setting]["matrix"]
            values = [[float("nan") if cell is None else cell for cell in line] for line in matrix]
            image = axes.imshow(values, vmin=0, vmax=100, cmap="viridis")
            average = result[setting]["average_accuracy"]
            axes.set_title(f"{method}, {title}\naverage {average:.1f} %", fontsize=10)
            axes.set_xticks(range(len(matrix)), [str(i + 1) for i in range(len(matrix))])
            axes.set_yticks(range(len(matrix)), [str(i + 1) for i in range(len(matrix))])
            for i, line in enumerate(matrix):
                for j, cell in enumerate(line):
                    if cell is not None and len(matrix) <= 10:
                        colour = "black" if cell > LIGHT_FROM else "white"
                        axes.text(j, i, f"{cell:.0f}", ha="center", va="center", color=colour, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("accuracy on task")
    for axes in grid[:, 0]:
        axes.set_ylabel("after learning task")
    assert image is not None
    figure.colorbar(image, ax=grid, label="percent", shrink=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
