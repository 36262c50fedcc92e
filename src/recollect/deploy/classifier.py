"""A classifier that keeps learning: the Python face of model folders.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> images = rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
>>> names = np.array(["dark", "light"] * 12)
>>> images[names == "dark"] //= 4
>>> model = ContinualClassifier(backbone="convnet", image_size=32, epochs=2)
>>> model = model.learn((images, names), task="may")
>>> model.classes_.tolist()
['dark', 'light']
>>> model.predict_proba(images[:3]).shape
(3, 2)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from recollect.deploy.data import Labelled, class_name, read_images, read_labelled
from recollect.deploy.folder import load_model, save_version
from recollect.deploy.learning import check_name, learn
from recollect.deploy.model import LearnedTask, Model, Settings
from recollect.deploy.reading import Reader, check_backbone, restore_learner
from recollect.engine import Observer, Runtime
from recollect.engine.runtime import to_host
from recollect.errors import UserError
from recollect.nets import backbones
from recollect.registry import lookup
from recollect.runs.settings import check, options_of_function
from recollect.storage import lock_folder


class ContinualClassifier:
    """Learns task after task without keeping images, and predicts over all of them.

    `backbone` is a name (`recollect list`) with its options, or any module from images [b, 3, h, w] to features [b, d].
    """

    def __init__(
        self,
        backbone: str | nn.Module = "resnet18",
        *,
        image_size: int = 64,
        epochs: int = 20,
        learning_rate: float = 5e-4,
        batch_size: int = 32,
        patience: int = 6,
        alpha: float = 1.0,
        seed: int = 0,
        flip: bool = True,
        device: str = "auto",
        precision: str = "auto",
        **backbone_options: Any,
    ) -> None:
        if isinstance(backbone, type):
            raise UserError(
                f"backbone is a name or a module, got the class {backbone.__name__}; give {backbone.__name__}()"
            )
        self._module = backbone if isinstance(backbone, nn.Module) else None
        name = "own" if isinstance(backbone, nn.Module) else backbone
        lookup("backbone", backbones(), name)
        options = check_options(name, backbone_options)
        self._device = device
        self._settings = Settings(
            backbone=name,
            backbone_options=options,
            image_size=image_size,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            patience=patience,
            alpha=alpha,
            seed=seed,
            flip=flip,
            precision=Runtime.choose(device, precision).precision,
        )
        self._model: Model | None = None
        self._reader: Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reader": None}  # made anew where it is needed

    @property
    def model(self) -> Model:
        """What has been learned."""
        if self._model is None:
            raise UserError("nothing has been learned yet; call learn(data, task=...) first")
        return self._model

    @property
    def has_learned(self) -> bool:
        """Whether there is a task to be read."""
        return self._model is not None

    @property
    def tasks_(self) -> list[LearnedTask]:
        """The tasks learned, in their order."""
        return list(self.model.tasks)

    @property
    def classes_(self) -> np.ndarray:
        """The names of all classes, in the order in which they first came."""
        return np.array(list(dict.fromkeys(name for task in self.model.tasks for name in task.classes)))

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def module(self) -> nn.Module | None:
        """The backbone of one's own, if it has one."""
        return self._module

    def learn(
        self,
        data: Any,
        task: str,
        *,
        work: str | Path | None = None,
        observer: Observer | None = None,
        heed_signals: bool = False,
        checkpoint_seconds: float = 300.0,
    ) -> Self:
        """Learn one more task from a folder, a pair of arrays, a Dataset or a DataLoader; returns itself.

        With `work`, a folder for its checkpoints, the same call goes on where it was cut.
        """
        labelled = data if isinstance(data, Labelled) else read_labelled(data, self._settings.image_size)
        runtime = Runtime.choose(self._device, self._settings.precision)
        with tempfile.TemporaryDirectory() as folder:
            self._model = learn(
                self._model,
                self._settings,
                labelled,
                task,
                runtime,
                Path(work or Path(folder) / "work"),
                self._module,
                observer=observer,
                heed_signals=heed_signals,
                checkpoint_seconds=checkpoint_seconds,
            )
        self._reader = None
        return self

    def predict_proba(self, x: Any, task: str | None = None) -> np.ndarray:
        """Probabilities [n, classes] in the order of `classes_` or, with a task, of its own classes.

        `x` is an array or tensor of images, a path or a Pillow image, a list of any, or a DataLoader. A class that
        several tasks hold has the sum of its probabilities.
        """
        images = self._images(x)
        if task is not None:
            return to_array(self.reader.probabilities(images, self._index(task)))
        units = self.reader.probabilities(images)
        names = self.classes_.tolist()
        owner = torch.tensor([names.index(name) for each in self.model.tasks for name in each.classes])
        found = torch.zeros(len(units), len(names))
        return to_array(found.index_add_(1, owner, units))

    def predict(self, x: Any, task: str | None = None) -> np.ndarray:
        """The name of the likeliest class of each image."""
        names = self.classes_ if task is None else np.array(self.model.tasks[self._index(task)].classes)
        return np.asarray(names[self.predict_proba(x, task).argmax(axis=1)])

    def score(self, x: Any, y: Sequence[Any], task: str | None = None) -> float:
        """The share of images classified right."""
        found = self.predict(x, task)
        if len(found) != len(y) or not len(found):
            raise UserError(f"give one label an image, and at least one; got {len(found)} images, {len(y)} labels")
        return float(np.mean([name == class_name(label) for name, label in zip(found, y, strict=True)]))

    def features(self, x: Any, as_of: str | None = None) -> np.ndarray:
        """Features [n, d]: today's or, as of a task, an estimate of those that the model gave when it had learned it.

        So an index of vectors built then can still be searched, at a loss, after the model has moved on.
        """
        return to_array(self.reader.features(self._images(x), None if as_of is None else self._index(as_of)))

    def save(self, folder: str | Path) -> Self:
        """Write a model folder, or a further version into one."""
        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise UserError(f"{place} is a file; give a folder for the model")
        place.mkdir(parents=True, exist_ok=True)
        with lock_folder(place):
            save_version(place, self.model)
        return self

    @classmethod
    def load(
        cls, folder: str | Path, *, backbone: nn.Module | None = None, device: str = "auto"
    ) -> ContinualClassifier:
        """From a model folder; a backbone of one's own is given again, its weights come from the folder."""
        return cls.of(load_model(Path(folder)), backbone=backbone, device=device)

    @classmethod
    def of(cls, model: Model, *, backbone: nn.Module | None = None, device: str = "auto") -> Self:
        """From a version of a model."""
        check_backbone(model.settings, backbone)
        found = cls.__new__(cls)
        found._module, found._device, found._settings = backbone, device, model.settings
        found._model, found._reader = model, None
        return found

    @property
    def reader(self) -> Reader:
        """The model made ready to read, once."""
        if self._reader is None:
            runtime = Runtime.choose(self._device, "fp32")
            self._reader = Reader(self.model, restore_learner(self.model, runtime, self._module), runtime)
        return self._reader

    def _images(self, x: Any) -> Tensor:
        return read_images(x, self._settings.image_size)

    def _index(self, task: str) -> int:
        names = [each.name for each in self.model.tasks]
        found = check_name(task)
        if found not in names:
            raise UserError(f"there is no task {task!r}; the model has learned {', '.join(names)}")
        return names.index(found)


def check_options(backbone: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a backbone, each known and of its type."""
    known = options_of_function("backbone", lookup("backbone", backbones(), backbone).make)
    return {name: check(lookup("option", known, name), value) for name, value in given.items()}


def to_array(tensor: Tensor) -> np.ndarray:
    return np.asarray(to_host(tensor))
