"""The current version of a model, kept in memory until another one replaces it.

That is the version of a model folder until `learn` or `rollback` makes another one current, or an exported file until
`export` writes it again.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recollect.errors import UserError
from recollect.inference import Classifier, ExportedClassifier, Prediction, Ranking, is_exported
from recollect.pictures import read_content

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


class CurrentModel:
    """A model folder or an exported file, and its current version. Not thread-safe: one thread uses it."""

    def __init__(self, path: Path, device: str = "auto", threads: int = 0) -> None:
        self.path = path
        self._device, self._threads = device, threads
        self._is_exported = is_exported(path)
        self._watched = path if self._is_exported else path / "model.json"
        self._loaded = self._load()

    def refresh(self) -> Loaded:
        """The current version, loaded if it has changed; the earlier one, with a warning, if it cannot be loaded."""
        if self._file_state() != self._loaded.state:
            try:
                self._loaded = self._load()
            except (UserError, OSError) as error:
                warnings.warn(f"version {self._loaded.version} stays in use: {error}", stacklevel=2)
        return self._loaded

    def _load(self) -> Loaded:
        state = self._file_state()
        version, classifier = self._read_file() if self._is_exported else self._read_folder()
        size = classifier.image_size
        classifier.predict_proba(np.zeros((1, 3, size, size), np.uint8))  # so that the first answer is fast
        return Loaded(version, classifier, state)

    def _read_file(self) -> tuple[str, Classifier]:
        classifier = ExportedClassifier.load(self.path, device=self._device, threads=self._threads)
        written = datetime.fromtimestamp(self.path.stat().st_mtime)
        return written.isoformat(" ", "seconds"), classifier

    def _read_folder(self) -> tuple[str, Classifier]:
        from recollect.deploy import ContinualClassifier, ModelStore  # imports torch
        from recollect.engine import Runtime

        Runtime.choose(self._device, "fp32", self._threads)
        store = ModelStore(self.path)
        version = store.current()
        return version, ContinualClassifier.of(store.load(version), device=self._device)

    def _file_state(self) -> FileState:
        """The watched file is replaced as a whole, so its number and time tell whether it has changed."""
        with suppress(OSError):
            about = self._watched.stat()
            return about.st_ino, about.st_mtime_ns
        return None
