"""How well pseudo-features stand in for the images of earlier months, and how well probabilities are calibrated.

Months of ten CIFAR-100 classes, 100 images per class, are learned with EfficientNet-Lite0 at 64 pixels. After each, what
the model says of earlier months is compared with their test images.

python benchmarks/calibration.py --data-root DATA [--months 6] [--classes 10] [--seeds 3] [--adapt]    adds to results/calibration.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pages.experiments import RESULTS
from recollect import ContinualClassifier
from recollect.runs.folder import code_version
from recollect.storage import write_json
from recollect.streams import Split, StreamOptions
from recollect.streams.build import open_stream

RAW = RESULTS / "calibration.json"
NUM_BINS = 15


def measure(data_root: Path, seed: int, months: int, classes: int, *, adapt: bool) -> dict[str, Any]:
    """What is estimated and what is true after each month but the first."""
    options = StreamOptions(tasks=100 // classes, train_per_class=100)
    tasks = open_stream("split-cifar100", options, seed, data_root).tasks[:months]
    model = ContinualClassifier(backbone="efficientnet-lite0", image_size=64, seed=seed)
    after = []
    for number, task in enumerate(tasks):
        month, name = _read(task.train), f"month {number + 1}"
        model.learn(month, task=name, adapt=adapt, force=adapt)
        if number:
            images = [_read(earlier.test) for earlier in tasks[: number + 1]]
            after.append(_compare(model, images))
            print(seed, adapt, after[-1], flush=True)
    return {"seed": seed, "classes": classes, "adapt": adapt, "after": after, "commit": code_version()}


def _read(split: Split) -> tuple[Tensor, list[str]]:
    images, labels = split.take(torch.arange(len(split)))
    return images, [f"class {label}" for label in labels.tolist()]


def _compare(model: ContinualClassifier, months: list[tuple[Tensor, list[str]]]) -> dict[str, Any]:
    estimated = [{"known": task.now.known, "unknown": task.now.unknown} for task in model.tasks_ if task.now]
    actual = [
        {"known": 100 * model.score(*month, task=task.name), "unknown": 100 * model.score(*month)}
        for task, month in zip(model.tasks_, months, strict=True)
    ]
    return {"estimated": estimated, "actual": actual[:-1], "calibrated": _calibrate(model, months)}


def _calibrate(model: ContinualClassifier, months: list[tuple[Tensor, list[str]]]) -> dict[str, float]:
    """Temperature, mean confidence, accuracy and expected calibration error in percent, over test images of all months."""
    probabilities = torch.cat([torch.as_tensor(model.predict_proba(images)) for images, _ in months])
    names = [name for _, labels in months for name in labels]
    confidence, predicted = probabilities.max(1)
    right = torch.tensor([model.classes_[index] == name for index, name in zip(predicted.tolist(), names, strict=True)])
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    gaps = [(right[bins == b].double() - confidence[bins == b]).sum().abs() for b in range(NUM_BINS)]
    shares = {"confidence": confidence.mean(), "accuracy": right.double().mean(), "error": sum(gaps) / len(right)}
    return {"temperature": model.model.temperature} | {name: 100 * float(share) for name, share in shares.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--months", type=int, default=6)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--adapt", action="store_true")
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        row = measure(arguments.data_root, seed, arguments.months, arguments.classes, adapt=arguments.adapt)
        rows = json.loads(RAW.read_text(encoding="utf-8"))["rows"] if RAW.exists() else []
        same = ("seed", "classes", "adapt")
        others = [other for other in rows if any(other[name] != row[name] for name in same)]
        write_json(RAW, {"rows": [*others, row]})
