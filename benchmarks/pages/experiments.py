"""The committed results, by preset."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from recollect.report.collect import Experiment, Result, collect
from recollect.results import find_results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
CPU = RESULTS / "cpu"
MAIN = ("til", "ablation", "alpha", "pca", "share", "units", "forms")
"""Presets that together are one experiment: split-cifar100 in 5 tasks."""
EXEMPLARS = 500
"""The paper's number of exemplars."""
FEW_EXEMPLARS = 100
"""The same share of the training images here as the paper's number there."""
FORMS = ("rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux")


def load(*presets: str) -> list[Result]:
    """The results of presets; one without results is left out."""
    folders = [CPU / preset for preset in presets]
    return list(find_results([folder for folder in folders if folder.exists()]).values())


@cache
def find_experiment(*presets: str) -> Experiment | None:
    """The results of presets as one experiment; None without results."""
    experiments = collect(load(*presets))
    if len(experiments) > 1:
        raise ValueError(f"{presets} are several experiments: {[experiment.title for experiment in experiments]}")
    return experiments[0] if experiments else None


def get_experiment(*presets: str) -> Experiment:
    experiment = find_experiment(*presets)
    if experiment is None:
        raise LookupError(f"there are no results of {', '.join(presets)} under {CPU}")
    return experiment


def main_experiment() -> Experiment:
    """Split CIFAR-100 in 5 tasks."""
    return get_experiment(*MAIN)


def load_json(name: str) -> dict[str, Any]:
    """A file of measurements under results/."""
    return dict(json.loads((RESULTS / name).read_text(encoding="utf-8")))


def load_recall() -> dict[float, list[dict[str, Any]]]:
    """The study of benchmarks/recall.py: by α, one result per seed."""
    by_alpha: dict[float, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / "recall").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        by_alpha.setdefault(result["alpha"], []).append(result)
    return dict(sorted(by_alpha.items()))


def exemplar_share(experiment: Experiment, memory: int) -> str:
    """Exemplars as a share of all training images, a tenth of which are held out for validation."""
    num_classes = {"split-cifar10": 10, "split-cifar100": 100, "split-tinyimagenet": 200}[experiment.stream]
    num_images = 0.9 * num_classes * int(experiment.settings["stream"]["train_per_class"])
    return f"{100 * memory / num_images:.1f} %"


def count_seeds(number: int) -> str:
    return f"{number} seed{'s' * (number > 1)}"
