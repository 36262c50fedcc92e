"""The figures that the paper reports, for the same stream, method and number of exemplars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from recollect.report.collect import Experiment, Variant

TASKS = {"split-cifar10": 5, "split-cifar100": 5, "split-tinyimagenet": 10}
"""The number of tasks in the paper's tables."""
FORMS = {
    "rfe-e2e": "rfe-end-to-end",
    "rfe-mlp-residual": "mlp-residual",
    "rfe-mlp-projection": "mlp-projection",
}


@cache
def paper() -> dict[str, Any]:
    return dict(json.loads((files("recollect.report") / "paper.json").read_text(encoding="utf-8")))


def accuracy(experiment: Experiment, variant: Variant, evaluation: str) -> tuple[float, float] | None:
    """The paper's mean and standard deviation; None where it has no such cell."""
    stream = experiment.stream
    if not _is_in_paper(experiment) or variant.options:
        return None
    if experiment.backbone == "vit-s16":
        rows = paper()["vit_s16_split_cifar100_task_incremental"] if evaluation == "til" else []
        return _find(rows, variant, None) if stream == "split-cifar100" else None
    if experiment.backbone != "resnet18":
        return None
    if variant.method in FORMS and evaluation == "til" and stream == "split-cifar100":
        rows = paper()["ablation_split_cifar100_task_incremental"]
        mean, deviation = next(row["accuracy"] for row in rows if row["variant"] == FORMS[variant.method])
        return mean, deviation
    table = {"til": "task_incremental", "cil": "class_incremental"}.get(evaluation)
    return _find(paper()[table], variant, stream) if table else None


def parameters(experiment: Experiment, variant: Variant) -> tuple[float, float] | None:
    """The paper's millions of parameters, in training and at inference; None where it has no such cell."""
    if not _is_in_paper(experiment) or variant.options:
        return None
    if experiment.backbone == "vit-s16" and experiment.stream == "split-cifar100":
        rows, by_stream = paper()["vit_s16_split_cifar100_task_incremental"], False
    elif experiment.backbone == "resnet18":
        rows, by_stream = paper()["task_incremental"], True
    else:
        return None
    for row in rows:
        if row["method"] == variant.method:  # the count does not depend on the number of exemplars
            training, inference = row["params_m"][experiment.stream] if by_stream else row["params_m"]
            return training, inference
    return None


def has_paper_costs(experiment: Experiment) -> bool:
    """Whether the paper reports time and space for this stream."""
    return experiment.stream == "split-tinyimagenet" and experiment.num_tasks == TASKS["split-tinyimagenet"]


def rank_correlation(experiment: Experiment, variants: Sequence[Variant], evaluation: str) -> tuple[float, int] | None:
    """Spearman's correlation of our accuracies with the paper's, and over how many methods; None below three."""
    from scipy.stats import spearmanr

    pairs = [
        (published[0], fmean(x or 0.0 for x in v.values(evaluation, "average_accuracy")))
        for v in variants
        if (published := accuracy(experiment, v, evaluation))
    ]
    return (float(spearmanr(*zip(*pairs, strict=True)).statistic), len(pairs)) if len(pairs) > 2 else None


def is_full_size(experiment: Experiment) -> bool:
    """Whether stream, network and training are as the paper's."""
    return not experiment.changed


def _is_in_paper(experiment: Experiment) -> bool:
    differs = {"stream.class_order", "backbone.weights", "backbone.stem"} & set(experiment.changed)
    return experiment.num_tasks == TASKS.get(experiment.stream) and not differs


def _find(rows: list[dict[str, Any]], variant: Variant, stream: str | None) -> tuple[float, float] | None:
    for row in rows:
        if row["method"] == variant.method and row["exemplars"] == variant.memory:
            cell = row["accuracy"] if stream is None else row["accuracy"].get(stream)
            return None if cell is None else (cell[0], cell[1])
    return None
