"""How fast is inference? `predict` in PyTorch against the ONNX file; writes results/serving.json for docs/speed.md.

    python benchmarks/serving.py

The models have learned three tasks of ten classes (random images, one epoch: what a model has learned does not change its speed). PyTorch and
the ONNX file take turns within one process, on the same bytes and with the same number of threads. The command is timed with the model folder and
with the ONNX file, also in turn.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from recollect import ContinualClassifier
from recollect.deploy.export import export
from recollect.inference import ExportedClassifier
from recollect.runs.folder import code_version
from recollect.storage import write_json

RESULTS = Path(__file__).parents[1] / "results" / "serving.json"
WITHOUT_WEIGHTS = {"weights": "none"}  # what they are does not change the speed
MODELS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "resnet18": (64, {}),
    "efficientnet-lite0": (64, WITHOUT_WEIGHTS),
    "efficientnet-lite1": (128, WITHOUT_WEIGHTS),  # the default backbone
}
"""The image size and the options of each backbone."""
TASKS, CLASSES = 3, 10
ROUNDS = {1: 60, 32: 12}
NUM_STARTS = 4  # of each command, of which the first is not counted


def measure(name: str, folder: Path) -> dict[str, Any]:
    size, options = MODELS[name]
    rng = np.random.default_rng(0)
    model = ContinualClassifier(name, image_size=size, epochs=1, **options)
    for task in range(TASKS):
        images = rng.integers(0, 256, (2 * CLASSES, size, size, 3), dtype=np.uint8)
        model.learn((images, [f"{task}-{number % CLASSES}" for number in range(len(images))]), task=str(task))
    model.save(folder / "model")
    export(model, folder / "model.onnx")
    exported = ExportedClassifier.load(folder / "model.onnx", threads=torch.get_num_threads())
    megabytes = (folder / "model.onnx").stat().st_size / 1e6
    measured: dict[str, Any] = {"image_size": size, "megabytes": megabytes, "batches": {}}
    for batch, rounds in ROUNDS.items():
        pixels = rng.integers(0, 256, (batch, 3, size, size), dtype=np.uint8)
        ways = {"predict": model.predict_proba, "onnx": exported.predict_proba}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for step in range(rounds + 2):
            for way, work in ways.items():
                started = time.perf_counter()
                work(pixels)
                if step > 1:
                    times[way].append(1000 * (time.perf_counter() - started))
        measured["batches"][batch] = {way: median(milliseconds) for way, milliseconds in times.items()}
    picture = folder / "picture.png"
    Image.fromarray(rng.integers(0, 256, (480, 640, 3), dtype=np.uint8)).save(picture)
    return measured | _time_commands(folder, picture)


def _time_commands(folder: Path, picture: Path) -> dict[str, float]:
    """The seconds from start to end of the command for one image, with the model folder and with the exported file."""
    paths = {"command_seconds": folder / "model", "exported_command_seconds": folder / "model.onnx"}
    seconds: dict[str, list[float]] = {key: [] for key in paths}
    for _ in range(NUM_STARTS):
        for key, path in paths.items():
            command = [sys.executable, "-m", "recollect", "predict", str(path), str(picture)]
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[key].append(time.perf_counter() - started)
    return {key: median(times[1:]) for key, times in seconds.items()}


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)  # of few images
    serving: dict[str, Any] = {"commit": code_version(), "threads": torch.get_num_threads(), "models": {}}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            serving["models"][name] = measure(name, Path(folder))
    write_json(RESULTS, serving)


if __name__ == "__main__":
    main()
