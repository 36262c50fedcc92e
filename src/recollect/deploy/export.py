"""A model as one ONNX file, from pixels to probabilities; running it needs only onnxruntime and NumPy.

Input `pixels`: uint8 [n, 3, size, size], as `predict` reads images. Outputs: `probabilities` [n, classes] over all
classes, and `within`, the probabilities of the classes of each task, side by side. The file's metadata names the class
and task of each column and describes the preprocessing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from recollect.core import folded
from recollect.core.auxiliary import POOLED_SIZE
from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.reader import unit_owners, unit_shares
from recollect.deploy.store import ModelStore
from recollect.deploy.versions import read_version
from recollect.errors import UserError
from recollect.inference.exported import ACROSS, CLASSES, IMAGE_SIZE, PIXELS, TASKS, WITHIN, ExportedClassifier
from recollect.inference.stored import ABOUT, ANSWERS, FILE
from recollect.rng import Key
from recollect.storage import lock_folder, write_bytes, write_json

PREPROCESSING = (
    "a JPEG may be decoded at a fraction of its size, at least twice the final one (Image.draft); upright by EXIF "
    "orientation (Pillow's ImageOps.exif_transpose); grey of 16 bits divided by 257; what is "
    "transparent laid over white (Image.alpha_composite); converted to RGB; the central square cut out and resized "
    "with bilinear interpolation (ImageOps.fit); as bytes [3, size, size]"
)


NUM_COMPARED, MIN_STABLE = 16, 4  # random images
TOLERANCE = 1e-3
"""The largest difference between probabilities of the file and of PyTorch, for at least half of the stable images.

Where classes have one or two images, the covariance may be nearly singular: rounding then changes the probabilities of
some images. An image is stable if the reader and the graph, both in PyTorch, agree on it.
"""


class Graph(nn.Module):
    """From pixels to calibrated probabilities, in operations that ONNX has."""

    scale: Tensor
    shift: Tensor
    owner: Tensor
    shares: Tensor

    def __init__(self, classifier: ContinualClassifier) -> None:
        super().__init__()
        reader, model = classifier.reader, classifier.model
        self.learner = reader.learner
        mean, std = (torch.tensor(values)[:, None, None] for values in (model.mean, model.std))
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", mean / std)
        self.register_buffer("owner", _membership(model.units))
        self.register_buffer("shares", unit_shares(model))
        for index, task in enumerate(model.tasks):
            self.register_buffer(f"owner_{index}", _membership(task.units) if task.merged_units else None)
        self.temperature = model.temperature
        self.temperatures = [task.temperature for task in model.tasks]
        size = model.settings.image_size
        for module in self.learner.rfe.chain.auxiliaries.modules():
            for name, child in module.named_children():
                if isinstance(child, nn.AdaptiveMaxPool2d) and size % POOLED_SIZE:
                    setattr(module, name, StaticPool(size))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        x = pixels.float() * self.scale - self.shift
        learner: Any = self.learner
        f = learner.network.backbone(x)
        estimates = learner.rfe.rewind(x, f)
        logits = [head(estimate) for head, estimate in zip(learner.network.heads, estimates, strict=True)]
        evidence = learner.identity.evidence(x, f)(estimates, logits)
        across = (evidence.log_softmax(1) / self.temperature + self.shares).softmax(1)
        parts = evidence.split([task_logits.shape[1] for task_logits in logits], 1)
        within = [
            self._sum_units(index, (part.log_softmax(1) / self.temperatures[index]).softmax(1))
            for index, part in enumerate(parts)
        ]
        return across @ self.owner, torch.cat(within, 1)

    def _sum_units(self, task: int, probabilities: Tensor) -> Tensor:
        owner = getattr(self, f"owner_{task}")
        return probabilities if owner is None else probabilities @ owner


def _membership(units: Sequence[str]) -> Tensor:
    """1 where a unit [units] belongs to a class [classes], and 0 elsewhere."""
    return F.one_hot(unit_owners(units), len(set(units))).float()


def _simplify(graph: Graph, size: int) -> None:
    """Give the graph networks that are exported faster."""
    learner: Any = graph.learner
    learner.network.backbone = simplified(learner.network.backbone, (3, size, size))
    if learner.identity.first is not None:
        learner.identity.first.module = simplified(learner.identity.first.module, (3, size, size))


def simplified(backbone: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
    """With BatchNorm folded, where it can be, and ReLU6 as an operation that is exported in a fraction of the time."""
    copy = folded(backbone, shape)
    if not isinstance(copy, fx.GraphModule):
        return backbone
    modules = dict(copy.named_modules())
    for node in list(copy.graph.nodes):
        is_relu6 = node.target is F.relu6 or isinstance(modules.get(str(node.target)), nn.ReLU6)
        if is_relu6 and node.users and len(node.args[0].users) == 1:  # else it may change its input for others
            with copy.graph.inserting_before(node):
                clamped = copy.graph.call_function(torch.clamp, (node.args[0], 0, 6))
            node.replace_all_uses_with(clamped)
            copy.graph.erase_node(node)
    copy.recompile()
    return copy


class StaticPool(nn.Module):
    """Adaptive max-pooling of images of one size, bin by bin."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bins = [(i * size // POOLED_SIZE, -(-(i + 1) * size // POOLED_SIZE)) for i in range(POOLED_SIZE)]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[:, :, low:high].amax(2, keepdim=True) for low, high in self.bins], 2)
        return torch.cat([x[:, :, :, low:high].amax(3, keepdim=True) for low, high in self.bins], 3)


def export(classifier: ContinualClassifier, path: Path) -> None:
    """Write the file, completely or not at all; where onnxruntime is installed, it is compared with PyTorch first."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file such as {path / 'model.onnx'}")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write {path.name} into; create it first")
    write_bytes(path, convert(classifier, str(path)))


def store_export(folder: Path, *, wait: bool = False) -> Path:
    """Write the file into the current version of a model folder, where `predict` and `serve` find it."""
    store = ModelStore(folder)
    name, model = store.load_current()
    content = convert(ContinualClassifier.of(model, device="cpu"), str(store.path(name) / FILE))
    with lock_folder(folder, wait=wait):
        version = store.path(name)
        weights = read_version(version)["sha256"]
        (version / ABOUT).unlink(missing_ok=True)  # a crash leaves a file that is not used
        write_bytes(version / FILE, content)
        about = {"sha256": hashlib.sha256(content).hexdigest(), "weights": weights, "answers": ANSWERS}
        write_json(version / ABOUT, about)
    return version / FILE


def convert(classifier: ContinualClassifier, name: str) -> bytes:
    """The content of the file; `name` is what messages call it."""
    try:
        import onnx
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise UserError("recollect export needs ONNX: pip install 'recollect-rfe[onnx]'") from error
    size = classifier.image_size
    images = torch.randint(
        0, 256, (NUM_COMPARED, 3, size, size), dtype=torch.uint8, generator=(Key(0) / "export").generator()
    )
    on_host = ContinualClassifier.of(classifier.model, backbone=classifier.module, device="cpu")
    tasks = [task.name for task in classifier.tasks_ if task.classes]
    expected = [on_host.predict_proba(images, task) for task in (None, *tasks)]
    graph = Graph(on_host).eval()
    with torch.inference_mode():
        across, within = graph(images)
    _simplify(graph, size)
    with warnings.catch_warnings(action="ignore"), _quiet():  # torch warns about its own internals
        program = torch.onnx.export(
            graph,
            (images[:2],),
            dynamo=True,
            verbose=False,
            input_names=[PIXELS],
            output_names=[ACROSS, WITHIN],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None
    model = program.model_proto
    for key, value in _metadata(classifier).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    if find_spec("onnxruntime"):
        exported = ExportedClassifier(content, name)
        computed = [across, *within.split([rows.shape[1] for rows in expected[1:]], 1)]
        for task, rows, others in zip((None, *tasks), expected, computed, strict=True):
            _compare(exported.predict_proba(np.asarray(images), task), rows, np.asarray(others))
    return content


def _compare(probabilities: np.ndarray, expected: np.ndarray, computed: np.ndarray) -> None:
    """Refuse probabilities [n, classes] of the file that are not those of the reader, where the graph's are."""
    stable = np.abs(computed - expected).max(axis=1) <= TOLERANCE
    gaps = np.abs(probabilities - expected).max(axis=1)
    gap = np.median(gaps[stable] if stable.sum() >= MIN_STABLE else gaps)
    if not gap <= TOLERANCE:
        raise UserError(
            f"the file was not written: its probabilities differ from those of PyTorch by {gap:.2g}, more than "
            f"{TOLERANCE:g}; use other versions of torch, onnx and onnxruntime"
        )


def _metadata(classifier: ContinualClassifier) -> dict[str, str]:
    tasks = [{"name": task.name, "classes": list(task.classes)} for task in classifier.tasks_]
    return {
        CLASSES: json.dumps(classifier.classes_.tolist(), ensure_ascii=False),
        TASKS: json.dumps(tasks, ensure_ascii=False),
        IMAGE_SIZE: str(classifier.image_size),
        "recollect.preprocessing": PREPROCESSING,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's messages about optional packages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
