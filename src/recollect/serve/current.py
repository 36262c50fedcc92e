"""The current version of a model, kept in memory until another one replaces it.

That is the version of a model folder until `learn` or `rollback` makes another one current, or an exported file until
`export` writes it again.

Where ONNX Runtime is installed and a folder's model runs on the processor, each version is also exported in the
background. Once that is done, the exported file is served. It takes a fraction of the time, and `export` checks on some
images that its probabilities are those of PyTorch. A version whose export is stored in the folder needs none of that.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
import weakref
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np

from recollect.errors import UserError
from recollect.inference import Classifier, ExportedClassifier, Prediction, Ranking, is_exported, load_stored
from recollect.pictures import read_content

ONNX = ("onnx", "onnxscript", "onnxruntime")
UPLOAD = "this file"  # what messages call an image that arrived without a name
FileState = tuple[int, int] | None


class Loaded(NamedTuple):
    """A version that is ready to predict."""

    version: str
    """The name of a folder's version, or when a file was written."""
    classifier: Classifier
    state: FileState
    """Identifies the state of the watched file, before the version was read."""

    def describe(self) -> dict[str, Any]:
        """Classes, tasks, name of the version and image size."""
        return {
            "version": self.version,
            "image_size": self.classifier.image_size,
            "classes": self.classifier.classes_.tolist(),
            "tasks": [{"name": task.name, "classes": list(task.classes)} for task in self.classifier.tasks_],
        }

    def predict(self, content: bytes, ranking: Ranking, task: str | None) -> Prediction:
        """The prediction of an image file, with the version that made it."""
        image = read_content(content, UPLOAD, self.classifier.image_size)
        return {**ranking(self.classifier.predict_proba(image[None], task)[0]), "version": self.version}


class Export:
    """`recollect export` of a model folder's current version, in a process of its own."""

    def __init__(self, model: Path) -> None:
        folder = Path(mkdtemp())
        self._file, self._errors = folder / "model.onnx", folder / "errors"
        command = [sys.executable, "-m", "recollect", "export", str(model.absolute()), str(self._file)]
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        except OSError:
            shutil.rmtree(folder)
            raise
        self.close = weakref.finalize(self, _close, self._process, folder)
        """Ends the process and removes what it has written."""

    def is_done(self) -> bool:
        """Whether the file, or an error, is there."""
        return self._process.poll() is not None

    def load(self, threads: int) -> ExportedClassifier:
        """The exported model."""
        if self._process.returncode:
            message = self._errors.read_text(errors="replace").strip()
            raise UserError(message.rpartition("\n")[2] or "the export was stopped")
        return ExportedClassifier.load(self._file, threads=threads)


def _close(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


class CurrentModel:
    """A model folder or an exported file, and its current version. Not thread-safe: one thread uses it."""

    def __init__(self, path: Path, device: str = "auto", threads: int = 0, *, exports: bool = True) -> None:
        self.path = path
        self._device, self._threads = device, threads
        self._is_exported = is_exported(path)
        self._exports = exports and not self._is_exported and all(map(find_spec, ONNX))
        self._export: Export | None = None
        self._watched = path if self._is_exported else path / "model.json"
        self._loaded = self._load()

    def refresh(self) -> Loaded:
        """The current version, loaded if it has changed; the earlier one, with a warning, if it cannot be loaded."""
        if self._file_state() != self._loaded.state:
            try:
                self._loaded = self._load()
            except (UserError, OSError) as error:
                warnings.warn(f"version {self._loaded.version} stays in use: {error}", stacklevel=2)
        elif self._export is not None and self._export.is_done():
            self._loaded = self._load_export(self._export)
            self.close()
        return self._loaded

    def close(self) -> None:
        """End an export that is still running, and remove its file."""
        if self._export is not None:
            self._export.close()
        self._export = None

    def _load(self) -> Loaded:
        state = self._file_state()
        stored = None if self._is_exported else load_stored(self.path, self._device, self._threads)
        version, classifier = stored or (self._read_file() if self._is_exported else self._read_folder())
        loaded = _warmed(Loaded(version, classifier, state))
        self.close()  # the export of an earlier version
        if self._exports and stored is None:
            self._export = self._start_export()
        return loaded

    def _start_export(self) -> Export | None:
        try:
            return Export(self.path)
        except OSError as error:
            _warn_about_export(error)
            return None

    def _load_export(self, export: Export) -> Loaded:
        """The loaded version in its exported form, or as it is."""
        try:
            return _warmed(self._loaded._replace(classifier=export.load(self._threads)))
        except (UserError, OSError) as error:
            _warn_about_export(error)
            return self._loaded

    def _read_file(self) -> tuple[str, Classifier]:
        classifier = ExportedClassifier.load(self.path, device=self._device, threads=self._threads)
        written = datetime.fromtimestamp(self.path.stat().st_mtime)
        return written.isoformat(" ", "seconds"), classifier

    def _read_folder(self) -> tuple[str, Classifier]:
        from recollect.deploy import ContinualClassifier, ModelStore  # imports torch
        from recollect.engine import Runtime

        runtime = Runtime.choose(self._device, "fp32", self._threads)
        store = ModelStore(self.path)
        version = store.current()
        classifier = ContinualClassifier.of(store.load(version), device=self._device)
        self._exports = self._exports and runtime.is_on_processor
        return version, classifier

    def _file_state(self) -> FileState:
        """The watched file is replaced as a whole, so its number and time tell whether it has changed."""
        with suppress(OSError):
            about = self._watched.stat()
            return about.st_ino, about.st_mtime_ns
        return None


def _warmed(loaded: Loaded) -> Loaded:
    """The version after a first prediction, so that the first answer is fast."""
    size = loaded.classifier.image_size
    loaded.classifier.predict_proba(np.zeros((1, 3, size, size), np.uint8))
    return loaded


def _warn_about_export(error: Exception) -> None:
    warnings.warn(
        f"PyTorch computes the predictions, which takes longer; the model cannot be exported: {error}", stacklevel=3
    )
