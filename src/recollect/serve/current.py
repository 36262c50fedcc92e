"""The current version of a model folder, kept in memory until `learn` or `rollback` makes another one current."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recollect.deploy import ContinualClassifier, ModelStore
from recollect.deploy.prediction import Prediction, Ranking
from recollect.errors import UserError
from recollect.pictures import read_content

UPLOAD = "this file"  # what messages call an image that arrived without a name
PointerState = tuple[int, int] | None


class Loaded(NamedTuple):
    """A version that is ready to predict."""

    version: str
    classifier: ContinualClassifier
    pointer: PointerState
    """Identifies the state of the pointer to the current version, before it was read."""

    def describe(self) -> dict[str, Any]:
        """Classes, tasks, name of the version and image size."""
        return {
            "version": self.version,
            "image_size": self.classifier.settings.image_size,
            "classes": self.classifier.model.classes,
            "tasks": [{"name": task.name, "classes": list(task.classes)} for task in self.classifier.tasks_],
        }

    def predict(self, content: bytes, ranking: Ranking, task: str | None) -> Prediction:
        """The prediction of an image file, with the version that made it."""
        image = read_content(content, UPLOAD, self.classifier.settings.image_size)
        return {**ranking(self.classifier.predict_proba(image[None], task)[0]), "version": self.version}


class CurrentModel:
    """A model folder and its current version. Not thread-safe: one thread uses it."""

    def __init__(self, folder: Path, device: str = "auto") -> None:
        self.folder = folder
        self._store, self._device = ModelStore(folder), device
        self._loaded = self._load()

    def refresh(self) -> Loaded:
        """The current version, loaded if it has changed; the earlier one, with a warning, if it cannot be loaded."""
        if self._pointer_state() != self._loaded.pointer:
            try:
                self._loaded = self._load()
            except (UserError, OSError) as error:
                warnings.warn(f"version {self._loaded.version} stays in use: {error}", stacklevel=2)
        return self._loaded

    def _load(self) -> Loaded:
        pointer = self._pointer_state()
        version = self._store.current()
        classifier = ContinualClassifier.of(self._store.load(version), device=self._device)
        size = classifier.settings.image_size
        classifier.predict_proba(np.zeros((1, size, size, 3), np.uint8))  # so that the first answer is fast
        return Loaded(version, classifier, pointer)

    def _pointer_state(self) -> PointerState:
        """The pointer is replaced as a whole, so its file and time tell whether it has changed."""
        with suppress(OSError):
            about = (self.folder / "model.json").stat()
            return about.st_ino, about.st_mtime_ns
        return None
