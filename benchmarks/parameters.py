"""How many parameters do methods have at the paper's size? Writes results/parameters.json, for docs/results.md.

    python benchmarks/parameters.py

Learners are built for all tasks of a stream and counted; nothing is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from recollect.runs import resolve
from recollect.runs.folder import code_version
from recollect.runs.run import create_learner
from recollect.storage import write_json
from recollect.streams import Stream, stream_from_tensors

RESULTS = Path(__file__).parents[1] / "results" / "parameters.json"
METHODS = ("joint", "finetune", "agem", "er", "derpp", "er-ace", "er-mkd", "tamil", "cls-er", "rfe-p", "rfe-b", "rfe")
FORMS = ("rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection")
STREAMS = {
    "split-cifar10": ("split-cifar10", {}, 5, 2, 32),
    "split-cifar100": ("split-cifar100", {}, 5, 20, 32),
    "split-tinyimagenet": ("split-tinyimagenet", {}, 10, 20, 64),
    "split-cifar100, vit-s16": ("split-cifar100", {"backbone": "vit-s16", "backbone.weights": "none"}, 5, 20, 32),
}
"""The stream, its settings, its tasks, their classes and the size of its images."""


def empty_stream(num_tasks: int, num_classes: int, image_size: int) -> Stream:
    """A stream of the right shape with one black image per class."""
    labels = torch.arange(num_tasks * num_classes)
    images = torch.zeros(len(labels), 3, image_size, image_size, dtype=torch.uint8)
    names = [[str(task * num_classes + c) for c in range(num_classes)] for task in range(num_tasks)]
    return stream_from_tensors(images, labels, images, labels, tasks=names, validation=0.0)


def count(stream_name: str, method: str, settings: dict[str, Any], stream: Stream) -> list[int]:
    """Parameters in training and at inference, after the last task has begun."""
    learner = create_learner(resolve(stream_name, method, 0, settings), stream)
    for task in stream.tasks:
        learner.begin_task(task.info)
    counts = learner.parameter_counts()
    return [counts.training, counts.inference]


def main() -> None:
    parameters: dict[str, dict[str, list[int]]] = {}
    for title, (stream_name, settings, num_tasks, num_classes, image_size) in STREAMS.items():
        stream = empty_stream(num_tasks, num_classes, image_size)
        methods = METHODS + (FORMS if title == "split-cifar100" else ())
        parameters[title] = {method: count(stream_name, method, settings, stream) for method in methods}
    write_json(RESULTS, {"commit": code_version(), "parameters": parameters})


if __name__ == "__main__":
    main()
