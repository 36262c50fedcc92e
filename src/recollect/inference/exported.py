"""A model as one ONNX file, which `recollect export` wrote, read with onnxruntime and NumPy.

It starts in a fraction of the time that importing torch takes, and predicts one image several times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.errors import UserError
from recollect.inference.external_data import has_external_data
from recollect.inference.tasks import IMAGE_SIZES, find_predictable_task
from recollect.names import check_class_name, check_task_name
from recollect.storage.documents import parse_json
from recollect.storage.files import read_limited

SUFFIX = ".onnx"
PIXELS, ACROSS, WITHIN = "pixels", "probabilities", "within"
"""The names of the input, of the probabilities of all classes, and of those within each task, side by side."""
CLASSES, TASKS, IMAGE_SIZE = "recollect.classes", "recollect.tasks", "recollect.image_size"
"""The keys of the metadata that predicting needs."""
MAX_BYTES = 2 << 30  # no ONNX file in one piece is larger
MAX_THREADS = 1024
BATCH_PIXELS, MAX_BATCH = 16 * 128 * 128, 256
"""Images that are read at a time: larger batches take more memory, and hardly less time per image."""
DAMAGED = "no ONNX file, or a damaged one"
SILENT = 4  # onnxruntime's level of messages; its errors are raised as well


def is_exported(model: Path) -> bool:
    """Whether a path stands for an exported file; otherwise it stands for a model folder."""
    return model.is_file() or (model.suffix.lower() == SUFFIX and not model.is_dir())


@dataclass(frozen=True)
class ExportedTask:
    """A task of an exported model."""

    name: str
    classes: tuple[str, ...]


class ExportedClassifier:
    """Predicts with the content of a file that `recollect export` wrote; it cannot learn.

    `name` is what messages call the file. `threads` are used for one batch; 0 leaves the choice to onnxruntime.
    """

    def __init__(self, content: bytes, name: str = "the file", *, threads: int = 0) -> None:
        if not 0 <= threads <= MAX_THREADS:
            raise UserError(f"threads are between 1 and {MAX_THREADS}, or 0 for onnxruntime's choice; got {threads}")
        self._name = name
        self._session = _open_session(content, name, threads)
        try:
            about = self._session.get_modelmeta().custom_metadata_map
            if not {CLASSES, TASKS, IMAGE_SIZE} <= set(about):
                raise ValueError("it has no classes and tasks in its metadata")
            self._tasks = parse_json(about[TASKS], list[ExportedTask])
            self._classes = parse_json(about[CLASSES], list[str])
            self._image_size = parse_json(about[IMAGE_SIZE], int)
            self._check_metadata()
            self._check_signature()
        except ValueError as error:
            raise _not_exported(name, str(error)) from error

    @classmethod
    def load(cls, file: str | Path, *, device: str = "auto", threads: int = 0) -> ExportedClassifier:
        """Load an exported file. It is computed on the processor, so `device` is "auto" or "cpu"."""
        if device not in ("auto", "cpu"):
            raise UserError(f"{file} is computed on the processor, got the device {device!r}; give the model folder")
        try:
            content = read_limited(Path(file), MAX_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"{file} cannot be read ({reason}); give a model folder, or a file that `recollect export` wrote"
            ) from error
        return cls(content, str(file), threads=threads)

    @property
    def tasks_(self) -> list[ExportedTask]:
        """The learned tasks, in order."""
        return list(self._tasks)

    @property
    def classes_(self) -> np.ndarray:
        """The names of all classes, in the order in which they were first learned."""
        return np.array(self._classes)

    @property
    def image_size(self) -> int:
        """Pixels along a side of the images that it reads."""
        return self._image_size

    def predict_proba(self, x: np.ndarray, task: str | None = None) -> np.ndarray:
        """Probabilities [n, classes] in the order of `classes_` or, with a task, of its own classes.

        `x` are uint8 images [n, 3, size, size]; `recollect.pictures.read_file(path, size)` reads one from a file.
        """
        size = self._image_size
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != (3, size, size):
            what = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
            raise UserError(f"give a uint8 array of images [n, 3, {size}, {size}], got {what}")
        output, columns = ACROSS, slice(0, len(self._classes))
        if task is not None:
            index = find_predictable_task(self._tasks, task)
            start = _count_columns(self._tasks[:index])
            output, columns = WITHIN, slice(start, start + len(self._tasks[index].classes))
        batch_size = max(1, min(MAX_BATCH, BATCH_PIXELS // size**2))
        rows = [np.zeros((0, columns.stop - columns.start), np.float32)]
        for start in range(0, len(x), batch_size):
            rows.append(self._run(output, x[start : start + batch_size])[:, columns])
        return np.concatenate(rows)

    def predict(self, x: np.ndarray, task: str | None = None) -> np.ndarray:
        """The name of the most probable class of each image."""
        probabilities = self.predict_proba(x, task)
        names = self._classes if task is None else self._tasks[find_predictable_task(self._tasks, task)].classes
        return np.asarray(np.array(names)[probabilities.argmax(axis=1)])

    def _run(self, output: str, pixels: np.ndarray) -> np.ndarray:
        """One output [n, columns] of the graph."""
        try:
            (probabilities,) = self._session.run([output], {PIXELS: pixels})
        except Exception as error:  # of many types, as when the file is opened
            reason = type(error).__name__  # its text contains names from the file
            raise UserError(f"onnxruntime cannot compute {self._name} ({reason}); export the model again") from error
        expected = (len(pixels), len(self._classes) if output == ACROSS else _count_columns(self._tasks))
        if probabilities.shape != expected:
            shapes = f"{list(probabilities.shape)} instead of {list(expected)}"
            raise _not_exported(self._name, f"its output {output} has the shape {shapes}")
        return np.asarray(probabilities)

    def _check_metadata(self) -> None:
        """Whether the names and the image size are those that a model can have."""
        names = [task.name for task in self._tasks]
        described = list(dict.fromkeys(name for task in self._tasks for name in task.classes))
        if not described or self._classes != described:
            raise ValueError("its classes are not those of its tasks")
        if [check_task_name(name) for name in names] != names or len(set(names)) < len(names):
            raise ValueError("a name of a task is not normalised, or there twice")
        if [check_class_name(name) for name in described] != described or any(
            len(set(task.classes)) < len(task.classes) for task in self._tasks
        ):
            raise ValueError("a name of a class is not normalised, or there twice in a task")
        least, most = IMAGE_SIZES
        if not least <= self._image_size <= most:
            raise ValueError(f"its image size is not from {least} to {most}")

    def _check_signature(self) -> None:
        """Whether the graph computes what the metadata says, for any number of images."""
        size, num_classes = self._image_size, len(self._classes)
        expected = [
            (PIXELS, "tensor(uint8)", [3, size, size]),
            (ACROSS, "tensor(float)", [num_classes]),
            (WITHIN, "tensor(float)", [_count_columns(self._tasks)]),
        ]
        values = [*self._session.get_inputs(), *self._session.get_outputs()]
        fixed = [value.name for value in values if not value.shape or isinstance(value.shape[0], int)]
        if fixed or [(value.name, value.type, value.shape[1:]) for value in values] != expected:
            raise ValueError("its inputs and outputs do not fit its metadata")


def _open_session(content: bytes, name: str, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"{name} needs onnxruntime to be read: pip install 'recollect-rfe[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, SILENT
    options.add_session_config_entry("session.load_model_format", "ONNX")  # not guessed from the content
    try:
        has_other_files = has_external_data(content)
    except ValueError as error:
        raise _not_exported(name, DAMAGED) from error
    if has_other_files:
        raise _not_exported(name, "it refers to other files")
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a damaged file makes onnxruntime raise errors of many types
        raise _not_exported(name, DAMAGED) from error


def _not_exported(name: str, reason: str) -> UserError:
    return UserError(f"{name} is not a file that `recollect export` wrote ({reason}); export the model again")


def _count_columns(tasks: Sequence[ExportedTask]) -> int:
    return sum(len(task.classes) for task in tasks)
