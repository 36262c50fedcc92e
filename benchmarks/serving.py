"""How fast is inference? `predict` in PyTorch against the ONNX file; writes results/serving.json for docs/speed.md.

    python benchmarks/serving.py

The models have learned three tasks of ten classes (random images, one epoch: what a model has learned does not change its speed). PyTorch and
onnxruntime take turns within one process, on the same bytes and with the same number of threads.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from recollect import ContinualClassifier
from recollect.deploy.export import export
from recollect.runs.folder import code_version
from recollect.storage import write_json

RESULTS = Path(__file__).parents[1] / "results" / "serving.json"
MODELS = {"resnet18": ("resnet18", {}), "efficientnet-lite0": ("efficientnet-lite0", {"weights": "none"})}
SIZE, TASKS, CLASSES = 64, 3, 10
ROUNDS = {1: 60, 32: 12}


def measure(name: str, folder: Path) -> dict[str, Any]:
    import onnxruntime

    backbone, options = MODELS[name]
    rng = np.random.default_rng(0)
    model = ContinualClassifier(backbone, image_size=SIZE, epochs=1, **options)
    for task in range(TASKS):
        images = rng.integers(0, 256, (2 * CLASSES, SIZE, SIZE, 3), dtype=np.uint8)
        model.learn((images, [f"{task}-{number % CLASSES}" for number in range(len(images))]), task=str(task))
    model.save(folder / "model")
    export(model, folder / "model.onnx")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings, providers=["CPUExecutionProvider"])
    measured: dict[str, Any] = {"megabytes": (folder / "model.onnx").stat().st_size / 1e6, "batches": {}}
    for batch, rounds in ROUNDS.items():
        images = rng.integers(0, 256, (batch, SIZE, SIZE, 3), dtype=np.uint8)
        pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        ways: dict[str, Callable[[], object]] = {
            "predict": lambda images=images: model.predict_proba(images),  # type: ignore[misc]
            "onnx": lambda pixels=pixels: session.run(["probabilities"], {"pixels": pixels}),  # type: ignore[misc]
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for step in range(rounds + 2):
            for way, work in ways.items():
                started = time.perf_counter()
                work()
                if step > 1:
                    times[way].append(1000 * (time.perf_counter() - started))
        measured["batches"][batch] = {way: median(milliseconds) for way, milliseconds in times.items()}
    picture = folder / "picture.png"
    Image.fromarray(rng.integers(0, 256, (480, 640, 3), dtype=np.uint8)).save(picture)
    command = [sys.executable, "-m", "recollect", "predict", str(folder / "model"), str(picture)]
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return measured | {"command_seconds": median(seconds[1:])}


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)  # of few images
    serving: dict[str, Any] = {"commit": code_version(), "threads": torch.get_num_threads(), "models": {}}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            serving["models"][name] = measure(name, Path(folder))
    write_json(RESULTS, serving)


if __name__ == "__main__":
    main()
