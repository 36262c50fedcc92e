"""Which pretrained backbone, at which image size: frozen features read by streaming LDA, on validation images.

python benchmarks/backbones.py run --data-root DATA     measures what is missing in results/backbones.json
python benchmarks/backbones.py page                     writes docs/backbones.md from it
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pages.experiments import RESULTS, ROOT
from pages.markdown import fill, table
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
NUM_CLASSES, PER_TASK, PER_CLASS = 30, 10, 100
BATCH_SIZE = 16


def measure(stream_name: str, name: str, size: int, data_root: Path) -> dict[str, Any]:
    """Accuracy on 100 validation images per class after learning from 100 others, in three tasks of ten classes."""
    stream = open_stream(stream_name, StreamOptions(tasks=10), 0, data_root)
    images, labels = zip(*(task.train.take(torch.arange(len(task.train))) for task in stream.tasks[:6]), strict=True)
    x, y = torch.cat(images), torch.cat(labels)
    rows = [(y == label).nonzero()[:, 0][: 2 * PER_CLASS] for label in range(NUM_CLASSES)]
    network = backbones()[name].make((3, *stream.image_shape[1:]), image_size=size).eval()
    assert isinstance(network, EfficientNetLite)
    Runtime.choose("cpu", "fp32").place(network)
    assert network.normalisation is not None
    mean, std = (torch.tensor(values)[:, None, None] for values in network.normalisation)
    read = folded(network, stream.image_shape)
    train, validation = (torch.cat([row[part] for row in rows]) for part in (slice(PER_CLASS), slice(PER_CLASS, None)))
    started = time.process_time()
    f, g = (_features(read, x[part], mean, std) for part in (train, validation))
    seconds = time.process_time() - started
    discriminant = Discriminant(f.shape[1])
    discriminant.grow(NUM_CLASSES)
    discriminant.add(f, y[train])
    discriminant.refresh()
    scores, truth = discriminant(g), y[validation]
    tasks = torch.arange(NUM_CLASSES) // PER_TASK
    within = scores.masked_fill(tasks[truth][:, None] != tasks, float("-inf"))
    return {
        "stream": stream_name, "backbone": name, "image_size": size,
        "task_known": 100 * float((within.argmax(1) == truth).double().mean()),
        "task_unknown": 100 * float((scores.argmax(1) == truth).double().mean()),
        "milliseconds": 1000 * seconds / len(x[train]) / 2, "images": len(truth), "commit": code_version(),
    }  # fmt: skip


@torch.inference_mode()
def _features(read: Callable[[Tensor], Tensor], images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return torch.cat([read((part / 255 - mean) / std) for part in images.split(BATCH_SIZE)])


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(RAW.read_text(encoding="utf-8"))["rows"]
    return rows


def run(data_root: Path) -> None:
    torch.set_num_threads(1)
    rows = _rows() if RAW.exists() else []
    done = {(row["stream"], row["backbone"], row["image_size"]) for row in rows}
    for size in SIZES:
        for stream in STREAMS:
            for name in VARIANTS:
                if (stream, name, size) not in done:
                    rows.append(measure(stream, name, size, data_root))
                    print(rows[-1], flush=True)
                    write_json(RAW, {"rows": rows})


def page() -> str:
    """The whole of docs/backbones.md."""
    rows, parts = _rows(), []
    for stream, title in STREAMS.items():
        cells = [
            [f"`{row['backbone']}`", str(row["image_size"]), f"{row['task_known']:.1f}", f"{row['task_unknown']:.1f}",
             f"{row['milliseconds']:.1f}"]
            for row in sorted(rows, key=lambda row: (row["backbone"], row["image_size"])) if row["stream"] == stream
        ]  # fmt: skip
        head = ["backbone", "image size", "task known", "task unknown", "ms per image"]
        parts += [f"## {title}", table(head, cells)]
    return fill(
        "backbones.md", {"tables": "\n\n".join(parts), "commits": ", ".join(sorted({r["commit"][:10] for r in rows}))}
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.data_root)
    PAGE.write_text(page(), encoding="utf-8")
