"""The exported form of a model folder's current version, where `recollect export MODEL` has stored it.

model/versions/002-june/model.onnx        as `export` writes it
model/versions/002-june/model.onnx.json   its hash, and that of the weights that it was made of

Reading it takes neither torch nor the weights. What is damaged, or was made of other weights, is refused.
"""

from __future__ import annotations

import hashlib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NotRequired, TypedDict

from recollect.errors import UserError
from recollect.inference.exported import MAX_BYTES, ExportedClassifier
from recollect.storage import read_json
from recollect.storage.documents import load_json
from recollect.storage.files import read_limited

FILE, ABOUT = "model.onnx", "model.onnx.json"
ANSWERS = 2
"""Raised whenever a file of earlier versions would answer otherwise than the model does."""


class AboutFile(TypedDict):
    """model.onnx.json."""

    sha256: str
    weights: str
    """The hash of the version's weights.safetensors."""
    answers: NotRequired[int]
    """ANSWERS of the program that wrote it."""


class _Pointer(TypedDict):
    current: str


class _Version(TypedDict):
    sha256: str


def load_stored(folder: Path, device: str = "auto", threads: int = 0) -> tuple[str, ExportedClassifier] | None:
    """The name of the current version and its stored export, which is computed on the processor.

    None if it has none, if another device is asked for, or if onnxruntime is not installed.
    """
    if device not in ("auto", "cpu") or find_spec("onnxruntime") is None:
        return None
    try:
        name = load_json(folder / "model.json", _Pointer)["current"]
        version = folder / "versions" / Path(name).name
        weights = load_json(version / "model.json", _Version)["sha256"]
    except (OSError, ValueError):
        return None  # loading the weights will say what is wrong
    if not (version / ABOUT).exists():
        return None
    remedy = f"store it again with recollect export {folder}"
    about = read_json(version / ABOUT, AboutFile, remedy)
    if about.get("answers") != ANSWERS:
        warnings.warn(
            f"{version / FILE} was stored by another version of recollect and is not used; {remedy}", stacklevel=2
        )
        return None
    try:
        content = read_limited(version / FILE, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{version / FILE} cannot be read ({error}); {remedy}") from error
    if (about["sha256"], about["weights"]) != (hashlib.sha256(content).hexdigest(), weights):
        raise UserError(f"{version / FILE} is damaged, or was made of other weights; {remedy}")
    return name, ExportedClassifier(content, str(version / FILE), threads=threads)
