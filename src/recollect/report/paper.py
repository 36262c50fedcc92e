"""The figures that the paper reports, to stand beside ours where the cell is the same."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from recollect.report.collect import Experiment, Variant

TASKS = {"split-cifar10": 5, "split-cifar100": 5, "split-tinyimagenet": 10}
FORMS = {
    "rfe-e2e": "rfe-end-to-end",
    "rfe-mlp-residual": "mlp-residual",
    "rfe-mlp-projection": "mlp-projection",
}


@cache
def paper() -> dict[str, Any]:
    return dict(json.loads((files("recollect.report") / "paper.json").read_text(encoding="utf-8")))


def accuracy(experiment: Experiment, variant: Variant, evaluation: str) -> tuple[float, float] | None:
    """The paper's mean and deviation for such a stream, method and budget; None where it has no such cell."""
    stream = experiment.stream
    unlike = {"stream.class_order", "backbone.weights", "backbone.stem"} & set(experiment.unusual)
    if experiment.num_tasks != TASKS.get(stream) or variant.own or unlike:
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


def _find(rows: list[dict[str, Any]], variant: Variant, stream: str | None) -> tuple[float, float] | None:
    for row in rows:
        if row["method"] == variant.method and row["exemplars"] == variant.memory:
            found = row["accuracy"] if stream is None else row["accuracy"].get(stream)
            return None if found is None else (found[0], found[1])
    return None


def is_full_size(experiment: Experiment) -> bool:
    """Whether stream, network and training are as the paper's."""
    return not experiment.unusual
