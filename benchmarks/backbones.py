"""Which pretrained backbone, image size, layers and components: accuracy of frozen features on validation images, by streaming LDA.

python benchmarks/backbones.py run --data-root DATA     measures what is missing in results/backbones.json
python benchmarks/backbones.py page                     writes docs/backbones.md from it
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from pages.experiments import RESULTS, ROOT
from pages.markdown import fill, table
from recollect import ContinualClassifier
from recollect.core import Discriminant, folded
from recollect.engine import Runtime
from recollect.nets import backbones
from recollect.nets.efficientnet import VARIANTS, EfficientNetLite
from recollect.runs.folder import code_version
from recollect.storage import write_json
from recollect.streams import StreamOptions, open_stream

RAW, PAGE = RESULTS / "backbones.json", ROOT / "docs" / "backbones.md"
SIZES = (128, 160, 224, 96, 64)
STREAMS = {"split-cifar100": "CIFAR-100 (32 pixels)", "split-tinyimagenet": "Tiny ImageNet (64 pixels)"}
TITLES = STREAMS | {"split-digits": "digits (8 pixels)", "split-cifar10": "CIFAR-10 (32 pixels)"}
LAYERS = (
    ("split-cifar100", "efficientnet-lite0", 64), ("split-cifar10", "efficientnet-lite0", 64),
    ("split-tinyimagenet", "efficientnet-lite0", 64), ("split-digits", "efficientnet-lite0", 64),
    ("split-cifar100", "efficientnet-lite1", 160), ("split-digits", "efficientnet-lite1", 160),
    ("split-tinyimagenet", "efficientnet-lite1", 160),
)  # fmt: skip
"""Where the last layer is compared with all blocks."""
ROUNDS, TIMED_IMAGES = 5, 64
"""How often each network is timed, and on how many images."""
COMPONENTS = (0, 1, 2, 4, 8, 16)
ADAPTED_SIZES = (64, 128)
NUM_CLASSES, PER_TASK, PER_CLASS = 30, 10, 100
BATCH_SIZE = 16


def measure(
    stream_name: str,
    name: str,
    size: int,
    data_root: Path,
    features: str = "last",
    *,
    chooses: bool = False,
    components: Sequence[int] = (0,),
) -> list[dict[str, Any]]:
    """Accuracy on up to 100 validation images per class after learning from as many others, task by task.

    With `chooses` the shrinkage is chosen as `recollect learn` does, else by Oracle Approximating Shrinkage. There is a
    row for each number of components of a class.
    """
    (x, y), (others, truth), tasks = _load(stream_name, data_root)
    shape = (3, *x.shape[2:])
    network = backbones()[name].make(shape, image_size=size, features=features).eval()
    assert isinstance(network, EfficientNetLite)
    Runtime.choose("cpu", "fp32").place(network)
    assert network.normalisation is not None
    mean, std = (torch.tensor(values)[:, None, None] for values in network.normalisation)
    read = folded(network, shape)
    f, g = (_features(read, images, mean, std) for images in (x, others))
    rows: list[dict[str, Any]] = []
    for number in components:
        scores = _discriminant(f, y, tasks, number, chooses=chooses)(g)
        within = scores.masked_fill(tasks[truth][:, None] != tasks, float("-inf"))
        rows.append({
            "stream": stream_name, "backbone": name, "image_size": size, "features": features,
            "components": number,
            "task_known": 100 * float((within.argmax(1) == truth).double().mean()),
            "task_unknown": 100 * float((scores.argmax(1) == truth).double().mean()),
            "images": len(truth), "commit": code_version(),
        })  # fmt: skip
    return rows


def _load(stream_name: str, data_root: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Images to learn from with their classes, validation images with theirs, and the task of each class."""
    stream = open_stream(stream_name, StreamOptions(tasks=10) if stream_name in STREAMS else None, 0, data_root)
    images, labels = zip(*(task.train.take(torch.arange(len(task.train))) for task in stream.tasks[:6]), strict=True)
    x, y = torch.cat(images).expand(-1, 3, -1, -1), torch.cat(labels)
    num_classes, per_task = min(NUM_CLASSES, len(y.unique())), min(PER_TASK, len(stream.tasks[0].info.class_names))
    per_class = min(PER_CLASS, min(torch.bincount(y)[:num_classes].tolist()) // 2)
    own = [(y == label).nonzero()[:, 0][: 2 * per_class] for label in range(num_classes)]
    train, validation = (torch.cat([row[part] for row in own]) for part in (slice(per_class), slice(per_class, None)))
    return (x[train], y[train]), (x[validation], y[validation]), torch.arange(num_classes) // per_task


def measure_adaptation(name: str, size: int, data_root: Path) -> dict[str, Any]:
    """CIFAR-100 with the same images, by `recollect learn` as it is and with --adapt in every month."""
    (x, y), (others, truth), tasks = _load("split-cifar100", data_root)
    row: dict[str, Any] = {"backbone": name, "image_size": size, "images": len(truth), "commit": code_version()}
    for way in ("frozen", "adapted"):
        model, started = ContinualClassifier(name, image_size=size, seed=0), time.process_time()
        for task in tasks.unique().tolist():
            own = tasks[y] == task
            adapt = way == "adapted"
            model.learn(
                (x[own], [str(label) for label in y[own].tolist()]), task=f"month {task}", adapt=adapt, force=adapt
            )
        minutes = (time.process_time() - started) / 60 / len(tasks.unique())
        months = [
            (others[own], [str(label) for label in truth[own].tolist()])
            for own in (tasks[truth] == task for task in tasks.unique())
        ]
        known = [model.score(*month, task=f"month {task}") for task, month in enumerate(months)]
        unknown = [model.score(*month) for month in months]
        row[way] = {"task_known": 100 * fmean(known), "task_unknown": 100 * fmean(unknown), "minutes": minutes}
    return row


def _discriminant(f: Tensor, y: Tensor, tasks: Tensor, components: int, *, chooses: bool) -> Discriminant:
    """Learned task by task from features f; `tasks` are those of the classes."""
    discriminant = Discriminant(f.shape[1], num_components=components)
    for task in range(int(tasks[-1]) + 1):
        discriminant.grow(int((tasks == task).sum()))
        own = tasks[y] == task
        if chooses:
            discriminant.choose(f[own], y[own])
        discriminant.add(f[own], y[own])
    discriminant.refresh()
    return discriminant


@torch.inference_mode()
def _features(read: Callable[[Tensor], Tensor], images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return torch.cat([read((part / 255 - mean) / std) for part in images.split(BATCH_SIZE)])


def measure_times() -> list[dict[str, Any]]:
    """CPU milliseconds per image of one thread, the least of several rounds over all networks and sizes."""
    readers = {}
    for name, size in itertools.product(VARIANTS, sorted(SIZES)):
        network = backbones()[name].make((3, 64, 64), image_size=size).eval()
        Runtime.choose("cpu", "fp32").place(network)
        readers[name, size] = folded(network, (3, 64, 64))
    images = torch.randn(TIMED_IMAGES, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    rounds: dict[tuple[str, int], list[float]] = {place: [] for place in readers}
    for _ in range(ROUNDS):
        for place, read in readers.items():
            started = time.process_time()
            with torch.inference_mode():
                for part in images.split(BATCH_SIZE):
                    read(part)
            rounds[place].append(1000 * (time.process_time() - started) / TIMED_IMAGES)
    return [
        {"backbone": name, "image_size": size, "milliseconds": min(times), "rounds": times, "commit": code_version()}
        for (name, size), times in rounds.items()
    ]


def _raw() -> dict[str, list[dict[str, Any]]]:
    raw: dict[str, list[dict[str, Any]]] = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else {}
    return {"rows": [], "layers": [], "components": [], "times": [], "adapted": []} | raw


def run(data_root: Path) -> None:
    torch.set_num_threads(1)
    raw = _raw()

    def record(kind: str, rows: list[dict[str, Any]]) -> None:
        raw[kind] += rows
        print(*rows, sep="\n", flush=True)
        write_json(RAW, raw)

    done = {(row["stream"], row["backbone"], row["image_size"], row["features"]) for row in raw["layers"]}
    for stream, name, size in LAYERS:
        for features in ("last", "blocks"):
            if (stream, name, size, features) not in done:
                record("layers", measure(stream, name, size, data_root, features, chooses=True))
    with_components = set(map(_place, raw["components"]))
    for place in LAYERS:
        if place not in with_components:
            record("components", measure(*place, data_root, "blocks", chooses=True, components=COMPONENTS))
    if not raw["times"]:
        record("times", measure_times())
    sizes = set(map(_place, raw["rows"]))
    for size in SIZES:
        for stream in STREAMS:
            for name in VARIANTS:
                if (stream, name, size) not in sizes:
                    record("rows", measure(stream, name, size, data_root))
    adapted = {(row["backbone"], row["image_size"]) for row in raw["adapted"]}
    for size in ADAPTED_SIZES:
        for name in VARIANTS:
            if (name, size) not in adapted:
                record("adapted", [measure_adaptation(name, size, data_root)])


def page() -> str:
    """The whole of docs/backbones.md."""
    raw, parts = _raw(), []
    times = {(row["backbone"], row["image_size"]): row["milliseconds"] for row in raw["times"]}
    for stream, title in STREAMS.items():
        cells = [
            [f"`{row['backbone']}`", str(row["image_size"]), *_accuracies(row), f"{times[row['backbone'], row['image_size']]:.1f}"]
            for row in sorted(raw["rows"], key=lambda row: (row["backbone"], row["image_size"])) if row["stream"] == stream
        ]  # fmt: skip
        head = ["backbone", "image size", "task known", "task unknown", "ms per image"]
        parts += [f"## {title}", table(head, cells)]
    by_place: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in raw["layers"]:
        by_place.setdefault(_place(row), {})[row["features"]] = row
    layers = [
        [TITLES[stream], f"`{name}`", str(size), *_accuracies(both["last"]), *_accuracies(both["blocks"])]
        for (stream, name, size), both in by_place.items() if len(both) == 2
    ]  # fmt: skip
    head = [
        "images",
        "backbone",
        "image size",
        "last layer: task known",
        "unknown",
        "all blocks: task known",
        "unknown",
    ]
    commits = {row["commit"][:10] for rows in raw.values() for row in rows}
    components = {
        place: {row["components"]: row for row in raw["components"] if _place(row) == place}
        for place in dict.fromkeys(map(_place, raw["components"]))
    }
    numbers = [
        [TITLES[place[0]], f"`{place[1]}`", str(place[2]), *(" / ".join(_accuracies(rows[number])) for number in COMPONENTS)]
        for place, rows in components.items()
    ]  # fmt: skip
    number_head = [
        "images",
        "backbone",
        "image size",
        *(f"{number} component{'s' * (number != 1)}" for number in COMPONENTS),
    ]
    values = {
        "tables": "\n\n".join(parts),
        "layers": table(head, layers),
        "components": table(number_head, numbers),
        "adapted": _adapted(raw["adapted"]),
        "commits": ", ".join(sorted(commits)),
    }
    return fill("backbones.md", values)


def _adapted(rows: list[dict[str, Any]]) -> str:
    """Accuracies of learning at once and with adaptation, and CPU minutes of both."""
    if not rows:
        return "Not measured yet."
    cells = [
        [f"`{row['backbone']}`", str(row["image_size"])]
        + [cell for way in ("frozen", "adapted") for cell in (*_accuracies(row[way]), f"{row[way]['minutes']:.1f}")]
        for row in sorted(rows, key=lambda row: (row["backbone"], row["image_size"]))
    ]
    head = ["at once: task known", "unknown", "minutes", "with `--adapt`: task known", "unknown", "minutes"]
    return table(["backbone", "image size", *head], cells)


def _place(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["stream"], row["backbone"], row["image_size"]


def _accuracies(row: dict[str, Any]) -> list[str]:
    return [f"{row['task_known']:.1f}", f"{row['task_unknown']:.1f}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.data_root)
    PAGE.write_text(page(), encoding="utf-8")
