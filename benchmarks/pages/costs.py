"""Parameters, time and space on docs/results.md, with the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pages.experiments import get_experiment, load_json
from pages.markdown import table
from recollect.report.costs import space_sheet, time_sheet
from recollect.report.paper import paper

STREAMS = {
    "split-cifar10": "CIFAR-10",
    "split-cifar100": "CIFAR-100",
    "split-tinyimagenet": "Tiny ImageNet",
    "split-cifar100, vit-s16": "CIFAR-100, ViT-S/16",
}
RETROSPECTORS = {
    "rfe": "rfe",
    "rfe-e2e": "rfe-end-to-end",
    "rfe-mlp-residual": "mlp-residual",
    "rfe-mlp-projection": "mlp-projection",
}
"""Our names and the paper's."""
IMAGE_VALUES = 3 * 64 * 64
"""Of an image of Tiny ImageNet."""


def values() -> dict[str, str]:
    """For the template."""
    measured = load_json("parameters.json")
    counts: dict[str, dict[str, list[int]]] = measured["parameters"]
    tiny = get_experiment("tinyimagenet")
    added = counts["split-tinyimagenet"]["rfe"][0] - counts["split-tinyimagenet"]["finetune"][0]
    return {
        "parameters_table": _parameters_table(counts),
        "retrospector_table": _retrospector_table(counts["split-cifar100"]),
        "parameters_commit": measured["commit"][:10],
        "time_table": time_sheet(tiny).markdown().strip(),
        "space_table": space_sheet(tiny).markdown().strip(),
        "rfe_added_values": f"{added / 1e6:.2f}",
        "image_values": f"{1000 * IMAGE_VALUES / 1e6:.2f}",
        "image_values_stored": f"{1000 * IMAGE_VALUES / 4 / 1e6:.2f}",
    }


def _parameters_table(counts: dict[str, dict[str, list[int]]]) -> str:
    published = {stream: _published(stream) for stream in STREAMS}
    rows = []
    for method in counts["split-cifar10"]:
        cells = []
        for stream in STREAMS:
            cells += [_pair(published[stream][method]), _pair([count / 1e6 for count in counts[stream][method]])]
        rows.append([method, *cells])
    head = ["parameters, M (training / inference)"]
    for title in STREAMS.values():
        head += [f"{title}: paper", "here"]
    return table(head, rows)


def _published(stream: str) -> dict[str, Sequence[float]]:
    """The paper's counts by method."""
    name, _, backbone = stream.partition(", ")
    rows: list[dict[str, Any]] = paper()["vit_s16_split_cifar100_task_incremental" if backbone else "task_incremental"]
    return {row["method"]: row["params_m"] if backbone else row["params_m"][name] for row in rows}


def _retrospector_table(counts: dict[str, list[int]]) -> str:
    """Parameters of the whole chain after 5 tasks of CIFAR-100."""
    rows = []
    published = {row["variant"]: row for row in paper()["ablation_split_cifar100_task_incremental"]}
    for method, name in RETROSPECTORS.items():
        chain = (counts[method][1] - counts["finetune"][1]) / 1e6
        rows.append([method, f"{published[name]['retrospector_params_m']:.2f}", f"{chain:.2f}"])
    return table(["parameters of the chain, M", "paper", "here"], rows)


def _pair(numbers: Sequence[float]) -> str:
    return " / ".join(f"{number:.2f}" for number in numbers)
