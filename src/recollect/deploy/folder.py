"""Model folders: versions side by side, and a pointer to the one in use. Files appear whole or not at all.

model/
  model.json                    format, and the name of the current version
  versions/002-june/model.json  settings, tasks with classes and figures, constants; no image
  versions/002-june/weights.safetensors
  unfinished/                   a learn that was cut: it goes on with the same command
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from recollect.engine.checkpoint import sync
from recollect.errors import UserError
from recollect.runs import read_json, write_json

FORMAT = 2
UNFINISHED = "unfinished"
KEPT = 5  # versions; older ones go
MOST_BYTES = 8 << 30


@dataclass(frozen=True)
class Settings:
    """How a model learns; fixed when it is made."""

    backbone: str = "resnet18"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    image_size: int = 64
    epochs: int = 20
    learning_rate: float = 5e-4
    batch_size: int = 32
    patience: int = 6
    """A phase ends early after so many epochs without a better validation loss."""
    alpha: float = 1.0
    seed: int = 0
    flip: bool = True
    precision: str = "fp32"


@dataclass(frozen=True)
class LearnedTask:
    """What is kept of a task: names and numbers."""

    name: str
    classes: tuple[str, ...]
    images: dict[str, int]
    accuracy: float | None
    """Percent of its validation images classified right within the task, when it was learned."""
    temperature: float
    """Of its probabilities, chosen on those images."""
    drifted: float | None
    """RMSE that learning it moved the features of its images by."""
    rectified: float | None
    """RMSE that the retrospector leaves of that."""
    typical: tuple[float, float]
    """Mean and deviation of its validation images' distance (1 less the cosine) to the nearest class mean."""
    learned: str
    seconds: float


@dataclass(frozen=True)
class Model:
    """A version of a model: all that is needed to read images and to learn more."""

    settings: Settings
    mean: tuple[float, ...]
    std: tuple[float, ...]
    tasks: tuple[LearnedTask, ...]
    temperature: float
    """Of the probabilities over all classes."""
    tensors: dict[str, Tensor] = field(repr=False)
    checks: dict[str, dict[str, float]] = field(default_factory=dict)
    """Accuracy on each task of test images seen by `check`, by their digest, the first time."""

    def to_json(self) -> dict[str, Any]:
        plain = {key: value for key, value in asdict(replace(self, tensors={})).items() if key != "tensors"}
        return {"format": FORMAT, **plain}


def save_version(folder: Path, model: Model) -> str:
    """Write a version beside the others and make it the current one; a crash leaves the old one current."""
    name = f"{len(model.tasks):03}-{_slug(model.tasks[-1].name)}"
    versions = folder / "versions"
    versions.mkdir(parents=True, exist_ok=True)
    aside = versions / UNFINISHED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    weights = aside / "weights.safetensors"
    try:
        save_file({key: tensor.contiguous() for key, tensor in model.tensors.items()}, weights)
        sync(weights)
        write_json(aside / "model.json", model.to_json() | {"sha256": _hash(weights)})
        sync(aside)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(
            f"the model cannot be written to {folder} ({error}); make room. The old model is whole"
        ) from error
    if (versions / name).exists():  # of a learn that was rolled back
        shutil.rmtree(versions / name)
    os.replace(aside, versions / name)
    sync(versions)
    point_to(folder, name)
    for old in sorted(path for path in versions.iterdir() if path.name != name)[: -(KEPT - 1)]:
        shutil.rmtree(old)
    return name


def note_checks(folder: Path, version: str, checks: dict[str, dict[str, float]]) -> None:
    """Keep accuracies that `check` found with a version."""
    path = folder / "versions" / version / "model.json"
    write_json(path, read_json(path) | {"checks": checks})


def point_to(folder: Path, name: str) -> None:
    """Make a version the current one."""
    write_json(folder / "model.json", {"format": FORMAT, "current": name})
    sync(folder)


def current(folder: Path) -> str:
    """The name of the version in use."""
    path = folder / "model.json"
    if not path.exists():
        raise UserError(f"{folder} holds no model; make one with recollect learn {folder} IMAGES --task NAME")
    about = read_json(path)
    name = about.get("current") if isinstance(about, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"\d{3,}-[\w.-]+", name):
        raise UserError(f"{path} is no model's; restore it, or point it to a folder under {folder / 'versions'}")
    _check_format(about, path)
    return name


def versions_of(folder: Path) -> list[str]:
    """All versions, oldest first."""
    return sorted(path.name for path in (folder / "versions").glob("[0-9]*") if (path / "model.json").exists())


def load_model(folder: Path, version: str | None = None) -> Model:
    """The current version of a model, or another; checked against its hash and schema."""
    place = folder / "versions" / (version or current(folder))
    about = read_json(place / "model.json")
    weights = place / "weights.safetensors"
    try:
        _check_format(about, place / "model.json")
        if weights.stat().st_size > MOST_BYTES:
            raise ValueError(f"{weights.stat().st_size} bytes, more than {MOST_BYTES}")
        data = weights.read_bytes()
        if hashlib.sha256(data).hexdigest() != about["sha256"]:
            raise ValueError("its weights do not match their hash")
        return Model(
            settings=Settings(**about["settings"]),
            mean=tuple(map(float, about["mean"])),
            std=tuple(map(float, about["std"])),
            tasks=tuple(_task(each) for each in about["tasks"]),
            temperature=float(about["temperature"]),
            tensors=load(data),
            checks=dict(about["checks"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise UserError(
            f"the model in {place} is damaged ({error}); go back with recollect rollback {folder}"
        ) from error


def _task(data: dict[str, Any]) -> LearnedTask:
    fixed = {"classes": tuple(data["classes"]), "typical": (float(data["typical"][0]), float(data["typical"][1]))}
    return LearnedTask(**{**data, **fixed})


def _check_format(about: Any, path: Path) -> None:
    found = about.get("format") if isinstance(about, dict) else None
    if found != FORMAT:
        raise UserError(
            f"{path} has the format {found!r}, this recollect reads {FORMAT}; use the version that wrote it"
        )


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "task"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
