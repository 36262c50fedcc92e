"""The pictures of docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pages.experiments import EXEMPLARS, FORMS, get_experiment, load_recall, main_experiment
from pictures import Picture
from recollect.report.claims import REHEARSAL
from recollect.report.collect import Experiment, Variant
from recollect.report.figures import draw_curves, draw_matrices, draw_rmse, draw_scatter
from recollect.report.query import accuracy_over_time, accuracy_over_time_per_seed, get_variant, mean_accuracy
from recollect.report.stats import all_defined
from recollect.report.style import DRIFTED, RECTIFIED, style_of

OVERVIEW = {
    "joint": "joint, sees all data at once",
    "rfe-plus": "RFE-plus, keeps no image",
    "rfe": "RFE, keeps no image",
    "derpp": "replay (DER++), keeps 500 images",
    "er": "replay (ER), keeps 500 images",
    "finetune": "fine-tuning, keeps no image",
}
"""Methods of the first picture's curves, and their labels."""
IN_MATRICES = ("finetune", "er", "derpp", "tamil", "rfe", "rfe-p", "rfe-b")
"""Methods whose accuracy matrices are shown."""


def pictures() -> Iterator[Picture]:
    main, tiny, long = main_experiment(), get_experiment("tinyimagenet"), get_experiment("long-chain")
    yield Picture(
        "story.png", _shown(main.variants, "til", "til_without_chain", "memory"), lambda p: draw_story(main, p)
    )
    matrices = {v.full_label: v.results[0] for v in tiny.variants if v.method in IN_MATRICES}
    data: Any = [[name, r["til"], r["cil"]] for name, r in matrices.items()]
    yield Picture("heatmap.png", data, lambda path: draw_matrices(matrices, path))
    yield Picture("long-chain.png", _shown(long.variants, "til", "cil"), lambda path: draw_curves(long, path))
    free = get_variant(main, "rfe", alpha=0.0).results[0]
    yield Picture("pca.png", free["drift"], lambda path: draw_scatter(free, "RFE, α = 0", path))
    recall = load_recall()
    data = [[r["seed"], r["alpha"], r["after"]] for results in recall.values() for r in results]
    yield Picture("recall.png", data, lambda path: draw_recall(recall, path))
    ten = get_experiment("rmse").variants[0].results[0]
    yield Picture("rmse.png", ten["drift"], lambda path: draw_rmse(ten, "α = 0", path))


def _shown(variants: Sequence[Variant], *keys: str) -> list[Any]:
    return [[v.full_label, [[result.get(key) for key in keys] for result in v.results]] for v in variants]


def draw_story(main: Experiment, path: Path) -> None:
    """Left: accuracy while tasks arrive. Middle: accuracy against images kept. Right: gain from the chain against α."""
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    curves, kept, chain = figure.subplots(1, 3)
    _draw_over_time(main, curves)
    _draw_kept(main, kept)
    _draw_chain(main, chain)
    num_seeds = max(len(v.seeds) for v in main.variants)
    figure.suptitle(
        f"CIFAR-100, 5 tasks of 20 classes, task known; mean of {num_seeds} seeds (hollow or pale: 1 seed), bands and "
        "whiskers: standard deviation",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def _draw_over_time(main: Experiment, axes: Axes) -> None:
    steps = range(1, main.num_tasks + 1)
    for method, label in OVERVIEW.items():
        v = get_variant(main, method, EXEMPLARS if method in REHEARSAL else 0)
        if method == "joint":
            axes.axhline(mean_accuracy(v, "til"), color=style_of(v.results[0]).colour, linestyle=":", label=label)
            continue
        (colour, marker), means = style_of(v.results[0]), accuracy_over_time(v, "til")
        axes.plot(
            steps,
            means,
            "-",
            color=colour,
            marker=marker,
            label=label,
            linewidth=3 if method.startswith("rfe") else 1.5,
        )
        if len(v.seeds) > 1:
            spreads = [stdev(column) for column in zip(*accuracy_over_time_per_seed(v, "til"), strict=True)]
            low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy over the tasks so far, percent", title="While tasks arrive")
    axes.set_xticks(steps)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9, loc="lower left")


def _draw_kept(main: Experiment, axes: Axes) -> None:
    """Every method's accuracy against the images it keeps; labels are spread out so that none covers another."""
    positions = {0: 0, 100: 1, 200: 2, 500: 3}
    bound = mean_accuracy(get_variant(main, "joint"), "til")
    for memory, x in positions.items():
        group = [v for v in main.variants if v.memory == memory and not v.options and v.method not in (*FORMS, "joint")]
        for is_rfe in (True, False):  # RFE's labels are left of the points, the others right
            variants = [v for v in group if v.method.startswith("rfe") == is_rfe]
            variants.sort(key=lambda v: (mean_accuracy(v, "til"), v.method))
            shift = -0.12 if is_rfe and memory else 0.12
            heights = spread_out([mean_accuracy(v, "til") for v in variants], 1.9, bound)
            for v, height in zip(variants, heights, strict=True):
                value, values = mean_accuracy(v, "til"), all_defined(v.values("til", "average_accuracy"))
                colour, marker = style_of(v.results[0])
                axes.errorbar(x, value, stdev(values) if len(values) > 1 else 0.0, fmt=marker, color=colour, zorder=3,
                              markersize=8 if is_rfe else 5, elinewidth=1,
                              markerfacecolor=colour if len(values) > 1 else "white")  # fmt: skip
                axes.annotate(v.method, (x, value), (x + shift, height), fontsize=9, va="center",
                              ha="right" if shift < 0 else "left", fontweight="bold" if is_rfe else "normal",
                              arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5})  # fmt: skip
    axes.axhline(bound, color=style_of(get_variant(main, "joint").results[0]).colour, linestyle=":")
    axes.annotate("joint, all images", (-0.25, bound), (0, 3), textcoords="offset points", fontsize=9)
    axes.set_ylim(0, bound + 5)
    axes.set_xticks(list(positions.values()), [f"{memory} images" for memory in positions])
    axes.set(
        xlim=(-0.3, 3.9),
        ylabel="accuracy after the last task, percent",
        title="Accuracy against images kept",
        xlabel="old images kept",
    )


def spread_out(values: Sequence[float], distance: float, limit: float) -> list[float]:
    """Ascending values, moved as little as necessary to be this far apart; those below the limit stay below it."""
    moved = list(values)
    for _ in range(200):
        for i in range(len(moved) - 1):
            lack = distance - (moved[i + 1] - moved[i])
            if lack > 0:
                moved[i] -= lack / 2
                moved[i + 1] += lack / 2
    if moved and values[-1] < limit:
        moved = [min(height, limit - distance * (len(moved) - i - 0.4)) for i, height in enumerate(moved)]
    return moved


def _draw_chain(main: Experiment, axes: Axes) -> None:
    """Accuracy with and without the chain against α."""
    by_alpha = {
        v.results[0]["config"]["method"]["alpha"]: v
        for v in main.variants
        if v.method == "rfe" and set(v.options) <= {"alpha"}
    }
    alphas = sorted(by_alpha)
    for shift, key, label, colour in ((-0.2, "til_without_chain", "old heads on current features", DRIFTED),
                                      (0.2, "til", "old heads through the chain", RECTIFIED)):  # fmt: skip
        values = [all_defined(by_alpha[alpha].values(key, "average_accuracy")) for alpha in alphas]
        errors = [stdev(of_alpha) if len(of_alpha) > 1 else float("nan") for of_alpha in values]
        bars = axes.bar([i + shift for i in range(len(alphas))], [fmean(of_alpha) for of_alpha in values], 0.38,
                        yerr=errors, color=colour, label=label, capsize=3)  # fmt: skip
        for bar, of_alpha in zip(bars, values, strict=True):
            bar.set_alpha(1.0 if len(of_alpha) > 1 else 0.5)
        axes.bar_label(bars, fmt="%.0f", fontsize=9)
    axes.set_xticks(range(len(alphas)), [f"α = {alpha:g}{' (paper)' * (alpha == 1)}" for alpha in alphas])
    axes.set(xlabel="weight of the drift loss, α", ylabel="accuracy, percent", title="What the chain adds")
    axes.margins(y=0.25)
    axes.legend(fontsize=9, loc="upper left")


def draw_recall(by_alpha: dict[float, list[dict[str, Any]]], path: Path) -> None:
    """Recall@10 after each month, drifted and rectified, a panel per α; the band is the range over seeds."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(by_alpha), sharey=True, squeeze=False)[0]
    lines = (("drifted", DRIFTED, "current features"), ("rectified", RECTIFIED, "as_of the first month"))
    for axes, (alpha, results) in zip(panels, by_alpha.items(), strict=True):
        for kind, colour, label in lines:
            columns = list(zip(*([step[f"recall_{kind}"] for step in r["after"]] for r in results), strict=True))
            steps = range(1, len(columns) + 1)
            axes.plot(steps, [fmean(column) for column in columns], marker="o", color=colour, label=label)
            low, high = list(map(min, columns)), list(map(max, columns))
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.set_xticks(steps)
        axes.set(title=f"α = {alpha:g}", xlabel="months learned", ylim=(0, 105))
    panels[0].set_ylabel("recall@10 of the first month's index, percent")
    panels[-1].legend(fontsize=9)
    figure.savefig(path, dpi=110)
