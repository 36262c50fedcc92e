"""The first table of an experiment, which methods it shows at first, and the runs behind it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from recollect.report.collect import Experiment, Result, Variant
from recollect.report.headline import candidates, rank
from recollect.report.layout import Cell, Sheet
from recollect.report.scenario import shares_classes
from recollect.report.stats import estimate

MAX_SHOWN = 12
COLUMNS = ("method", "images kept", "task unknown (CIL)", "task predicted correctly", "task known (TIL)",
           "forgetting, task known", "parameters, M (training / inference)", "seeds")  # fmt: skip
METRICS = (("cil", "average_accuracy"), ("task_prediction", "average_accuracy"), ("til", "average_accuracy"),
           ("til", "forgetting"))  # fmt: skip
NOTE = (
    "Percent after the last task, mean ± half of Student's 95 % interval over seeds; with two seeds both values, with "
    "one no interval. Forgetting: a task's best accuracy minus its last. Of several variants of a method, those shown "
    "at first are the best on validation images, with the task unknown or known."
)


def by_seeds(experiments: Sequence[Experiment]) -> list[Experiment]:
    """The experiment with most seeds first, of equal ones the one with most runs."""
    return sorted(
        experiments,
        key=lambda e: (-max(len(v.seeds) for v in e.variants), -sum(len(v.seeds) for v in e.variants)),
    )


def default_variants(experiment: Experiment) -> list[Variant]:
    """At most 12: the bounds, and the best with and without images, of RFE's forms and of other methods."""
    chosen = [v for evaluation in ("cil", "til") for v in candidates(experiment, evaluation)]
    variants = list({id(v): v for v in chosen}.values())
    bounds = [v for v in variants if v.method in ("joint", "finetune")]
    groups: list[list[Variant]] = []
    for keeps_images in (False, True):
        group = [v for v in variants if bool(v.memory) == keeps_images and v not in bounds]
        ranked = rank(_with_usual_memory(group), "cil")
        groups += [[v for v in ranked if v.method.startswith("rfe") == is_rfe] for is_rfe in (True, False)]
    chosen = bounds[:2]
    while len(chosen) < MAX_SHOWN and any(groups):
        chosen += [group.pop(0) for group in groups if group][: MAX_SHOWN - len(chosen)]
    return sort_by_images(chosen)


def sort_by_images(variants: Sequence[Variant]) -> list[Variant]:
    """By the images kept, those without any first and joint training last; then by accuracy with the task unknown."""
    position = {id(v): i for i, v in enumerate(rank(variants, "cil"))}
    return sorted(variants, key=lambda v: (v.method == "joint", v.memory, position.get(id(v), len(position))))


def summary_sheet(experiment: Experiment, name: str) -> Sheet:
    """Every variant: accuracy with the task unknown and known, how often the task is predicted, and the costs."""
    variants = sort_by_images(experiment.variants)
    hidden = [key == "task_prediction" and shares_classes(experiment.settings["stream"]) for key, _ in METRICS]
    rows: list[list[Cell | str]] = []
    for v in variants:
        counts = v.results[0]["parameters"]
        row: list[Cell | str] = [v.label, v.images_kept]
        row += [
            "–" if is_hidden else estimate(v.values(*metric)) for metric, is_hidden in zip(METRICS, hidden, strict=True)
        ]
        rows.append([*row, f"{counts['training'] / 1e6:.2f} / {counts['inference'] / 1e6:.2f}", str(len(v.seeds))])
    labels = [(v.full_label,) for v in variants]
    return Sheet(name, f"Summary: {experiment.title}", COLUMNS, rows, [NOTE], labels)


def runs_sheet(experiment: Experiment, name: str) -> Sheet:
    """When, from which commit and by which command each result was made."""
    rows, labels = [], []
    for v in experiment.variants:
        for result in v.results:
            rows.append([v.full_label, str(result["seed"]), *_origin(result)])
            labels.append((v.full_label,))
    columns = ["method", "seed", "finished", "commit", "command"]
    return Sheet(name, f"Runs: {experiment.title}", columns, rows, (), labels)


def unused_sheet(experiment: Experiment, name: str) -> Sheet:
    """The results that repeat others, and why they do not count."""
    rows = [[str(unused.result["config"]["method"]["name"]), unused.reason, *_origin(unused.result)]
            for unused in experiment.unused]  # fmt: skip
    columns = ["method", "why it is not used", "finished", "commit", "command"]
    return Sheet(name, f"Results that are not used: {experiment.title}", columns, rows)


def _origin(result: Result) -> list[str]:
    commit = str(result.get("commit", ""))
    return [str(result.get("finished", "not recorded")), commit[:10] or "–", str(result.get("command", "")) or "–"]


def _with_usual_memory(variants: Sequence[Variant]) -> list[Variant]:
    """Those with the number of images that most of them keep, of equal numbers the largest."""
    by_memory = [(memory, list(group)) for memory, group in groupby(sorted(variants, key=_memory), key=_memory)]
    return max(by_memory, key=lambda pair: (len(pair[1]), pair[0]))[1] if by_memory else []


def _memory(v: Variant) -> int:
    return v.memory
