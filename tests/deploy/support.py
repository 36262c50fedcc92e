"""Images and small models that the tests of models share."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from recollect import ContinualClassifier
from recollect.deploy import Model
from recollect.inference import predict_chunks
from recollect.rng import Key

MONTHS = {"may": ("0", "1"), "june": ("2", "3"), "july": ("1", "4")}
SIZE = 16  # pixels of the digits that these models learn
SMALL: dict[str, Any] = {"image_size": 32, "epochs": 1, "device": "cpu", "precision": "fp32"}
LEARN = ("--backbone", "convnet", "--image-size", "32", "--epochs", "1", "--device", "cpu")


def digits(task: str, *, test: bool = False) -> tuple[np.ndarray, list[str]]:
    """The handwritten digits of a month's classes, and their names."""
    data = load_digits()
    names = data.target.astype(str)
    rows = np.isin(names, MONTHS[task]) & ((np.arange(len(names)) % 5 == 0) == test)
    return (data.images[rows] * 15.9).astype(np.uint8), names[rows].tolist()


def random_images(seed: int = 0, num: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num, 32, 32, 3), dtype=np.uint8)


def write_images(folder: Path, images: np.ndarray, names: list[str]) -> Path:
    """Write folder/<class>/<number>.png."""
    for number, (image, name) in enumerate(zip(images, names, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name / f"{number}.png")
    return folder


def write_digits(folder: Path, task: str, *, test: bool = False, limit: int | None = None) -> Path:
    images, names = digits(task, test=test)
    return write_images(folder, images[:limit], names[:limit])


def write_photos(folder: Path, names: tuple[str, ...] = ("a", "b"), num: int = 10) -> Path:
    """Write random images, `num` per class."""
    for number, name in enumerate(names):
        write_images(folder, random_images(number, num), [name] * num)
    return folder


def validation_rows(labels: torch.Tensor, task: int) -> torch.Tensor:
    """The rows that a learn holds out, as docs/models.md describes it: 15 % of each class, for the seed 0."""
    rows = []
    for label in labels.unique().tolist():
        of_class = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(of_class), generator=(Key(0) / "validation" / task / label).generator())
        rows.append(of_class[order[: round(0.15 * len(of_class))]])
    return torch.cat(rows).sort().values


def make_classifier(**options: Any) -> ContinualClassifier:
    """A classifier that learns digits well within seconds."""
    defaults = {"backbone": "convnet", "image_size": SIZE, "epochs": 8, "learning_rate": 2e-3, "flip": False}
    return ContinualClassifier(**(defaults | {"precision": "fp32", "device": "cpu"} | options))


def train_model(*tasks: str, **options: Any) -> ContinualClassifier:
    """A classifier that has learned random images of two classes per task, for an epoch."""
    model = ContinualClassifier(**({"backbone": "convnet"} | SMALL | options))
    for number, task in enumerate(tasks):
        model.learn((random_images(number), [f"{task}a", f"{task}b"] * 12), task=task)
    return model


def learn_command(model: Path, images: Path, task: str, *more: str) -> list[str]:
    """The arguments of `recollect learn`, with which digits are learned well within seconds."""
    new = ["--backbone", "convnet", "--image-size", str(SIZE), "--epochs", "6", "--no-mirror", "--precision", "fp32"]
    options = new if task == "may" else []
    return ["learn", str(model), str(images), "--task", task, "--threads", "1", *options, *more]


def bits(model: Model) -> str:
    """A hash of all tensors."""
    digest = hashlib.sha256()
    for name in sorted(model.tensors):
        digest.update(name.encode() + model.tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Tied(nn.Module):
    """A backbone in which one layer has two names."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.body = nn.Sequential(self.stem, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.body(x)
        return features


def predict_files(classifier: ContinualClassifier, paths: Sequence[Path], **options: Any) -> list[dict[str, Any]]:
    """All predictions of image files at once."""
    return [prediction for chunk in predict_chunks(classifier, paths, **options) for prediction in chunk]


def predict_and_list_modules(model: Path, image: Path) -> tuple[str, list[str]]:
    """What `recollect predict --csv` prints of an image, and which large packages it has imported."""
    code = f"import json, sys; sys.argv = ['recollect', 'predict', {str(model)!r}, {str(image)!r}, '--csv']\n"
    code += "import recollect.cli.app as app\ntry: app.main()\nexcept SystemExit as ended: assert not ended.code\n"
    code += "large = {'torch', 'sklearn', 'scipy', 'pandas', 'matplotlib', 'onnx'} & set(sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(json.dumps(sorted(large)))"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    _, line, modules = done.stdout.splitlines()
    return line, json.loads(modules)
