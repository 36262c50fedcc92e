"""A classifier that keeps learning: the Python interface of models and their folders.

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
from inspect import signature
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor, nn

from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.estimator import (
    changed_parameters,
    check_labels,
    describe,
    join_labels,
    make_settings,
    make_tags,
    next_task,
    parameters_of,
    refuse_numbers,
)
from recollect.deploy.model import LearnedTask, Model, Settings
from recollect.deploy.reader import Reader, check_backbone
from recollect.deploy.stages import choose_stages, complete_settings, learn_in_stages, warn_if_rejected
from recollect.deploy.store import ModelStore
from recollect.device import to_host
from recollect.engine import Observer, Runtime
from recollect.errors import UserError
from recollect.inference import find_predictable_task, find_task


class ContinualClassifier:
    """Learns task after task without keeping images, and predicts the classes of all tasks.

    `backbone` is a name (`recollect list`) with its options, or any module from images [b, 3, h, w] to features [b, d].
    docs/models.md explains the other parameters; most of them apply where the backbone is trained.
    """

    _estimator_type = "classifier"  # for scikit-learn before 1.6, which asks for no tags

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet-lite1",
        *,
        image_size: int = 0,
        epochs: int = 0,
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
        values = {
            "image_size": image_size,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "patience": patience,
            "alpha": alpha,
            "seed": seed,
            "flip": flip,
        }
        self._settings = make_settings(backbone, device, precision, backbone_options, **values)
        self._parameters: dict[str, Any] = {"backbone": backbone, **values, "device": device, "precision": precision}
        self._parameters |= backbone_options
        self._module = backbone if isinstance(backbone, nn.Module) else None
        self._device = device
        self._model: Model | None = None
        self._reader: Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reader": None}  # rebuilt on first use

    def __repr__(self) -> str:
        defaults = {name: parameter.default for name, parameter in signature(ContinualClassifier).parameters.items()}
        return describe(changed_parameters(defaults, self._parameters), self._model.tasks if self._model else ())

    def __sklearn_is_fitted__(self) -> bool:
        return self.has_learned

    def __sklearn_tags__(self) -> Any:
        return make_tags()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters as they were given; what `learn` chose in place of 0 is in `settings`."""
        return dict(self._parameters)

    def set_params(self, **params: Any) -> Self:
        """Change parameters before anything is learned; returns itself."""
        changed = changed_parameters(self._parameters, params)
        copy = type(self)(**(self._parameters | params)) if changed else self  # refuses unknown parameters
        if changed and self.has_learned:
            raise UserError(
                f"{', '.join(changed)} cannot be changed after learning; sklearn.base.clone(model) is a copy that has "
                "learned nothing"
            )
        if changed:
            vars(self).update(vars(copy))
        return self

    @property
    def model(self) -> Model:
        """The current version of the model."""
        if self._model is None:
            from recollect.deploy.unfitted import NotLearnedError  # imports scikit-learn

            raise NotLearnedError("nothing has been learned yet; call learn(data, task=...) first")
        return self._model

    @property
    def has_learned(self) -> bool:
        """Whether at least one task has been learned."""
        return self._model is not None

    @property
    def tasks_(self) -> list[LearnedTask]:
        """The learned tasks, in order."""
        return list(self.model.tasks)

    @property
    def classes_(self) -> np.ndarray:
        """The names of all classes, in the order in which they were first learned."""
        return np.array(self.model.classes)

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def image_size(self) -> int:
        """Pixels along a side of the images that the network reads; 0 until it is chosen."""
        return self._settings.image_size

    @property
    def module(self) -> nn.Module | None:
        """The custom backbone, if there is one."""
        return self._module

    def learn(
        self,
        data: Any,
        task: str,
        *,
        adapt: bool | None = None,
        minutes: float | None = None,
        force: bool = False,
        work: str | Path | None = None,
        observer: Observer | None = None,
        heed_signals: bool = False,
        checkpoint_seconds: float = 300.0,
    ) -> Self:
        """Learn one more task; returns itself.

        The data is a folder with one subfolder per class, images and labels (arrays, tensors, lists of paths or Pillow
        images), or a Dataset, DataLoader or generator of pairs of an image and its label.

        A pretrained backbone is read as it is; with `adapt` it is trained on the task too, and the result kept if
        validation images say that it is not worse, or with `force`. Others are trained unless `adapt` is False.
        `minutes` adapts too, and ends the training before an epoch that would exceed them.

        With `work`, a folder for checkpoints, the same call resumes an interrupted one. `ModelStore.learn` learns in a
        model folder, with its lock and checkpoints.
        """
        settings = self._settings
        if self._model is None:
            settings = complete_settings(settings, data, self._module)
        labelled = read_labelled(data, settings.image_size)
        runtime = Runtime.choose(self._device, settings.precision)
        stages = choose_stages(settings, adapt, minutes, self._module, is_first=self._model is None, force=force)
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = Path(work or Path(folder) / "work")
            learned = learn_in_stages(
                self._model, settings, labelled, task, runtime, checkpoints, self._module, stages,
                force=force, observer=observer, heed_signals=heed_signals, checkpoint_seconds=checkpoint_seconds,
            )  # fmt: skip
        warn_if_rejected(learned)
        self._settings, self._model, self._reader = settings, learned.model, None
        return self

    def fit(self, x: Any, y: Any = None) -> Self:
        """Forget everything and learn one task, "task 1"; if that fails, the model is as before. Returns itself.

        Without labels y, x is a folder or something else that has them, as for `learn`.
        """
        new = type(self)(**self._parameters).learn(join_labels(x, y), task=next_task(()))
        vars(self).update(vars(new))
        return self

    def partial_fit(self, x: Any, y: Any = None, task: str | None = None) -> Self:
        """Learn one more task, by default named by its number: "task 2" after one; returns itself."""
        name = next_task(self._model.tasks if self._model else ()) if task is None else task
        if y is not None and self._model is not None:
            y = list(y)
            refuse_numbers(y, self._model.classes)
        return self.learn(join_labels(x, y), name)

    def predict_proba(self, x: Any, task: str | None = None) -> np.ndarray:
        """Probabilities [n, classes] in the order of `classes_` or, with a task, of its own classes.

        `x` is an array or tensor of images (uint8, or floats from 0 to 1), a folder, a path, a Pillow image, a list or
        a generator of these, or a DataLoader. A folder stands for all images in it, in the order of their paths. A
        class that several tasks contain has the sum of its probabilities.
        """
        index = None if task is None else find_predictable_task(self.model.tasks, task)
        return to_array(self.reader.probabilities(self.reader.outputs(self._images(x)), index))

    def predict(self, x: Any, task: str | None = None) -> np.ndarray:
        """The name of the most probable class of each image."""
        names = self.classes_ if task is None else np.array(self.task(task).classes)
        return np.asarray(names[self.predict_proba(x, task).argmax(axis=1)])

    def score(self, x: Any, y: Any = None, task: str | None = None) -> float:
        """The fraction of images classified correctly; without labels y, x has them, as for `learn`.

        Labels that are no known class count as wrong; if none is known, that is an error.
        """
        classes = self.model.classes if task is None else self.task(task).classes
        if y is None:
            labelled = read_labelled(join_labels(x, y), self._settings.image_size)
            x, y = labelled.images, [labelled.class_names[label] for label in labelled.labels.tolist()]
        names = check_labels(y, classes)
        predicted = np.array(classes)[self.predict_proba(x, task).argmax(axis=1)]
        if len(predicted) != len(names) or not names:
            raise UserError(
                f"give one label per image, and at least one; got {len(predicted)} images, {len(names)} labels"
            )
        return float(np.mean(predicted == np.array(names)))

    def features(self, x: Any, as_of: str | None = None) -> np.ndarray:
        """Current features [n, d] or, with `as_of`, an estimate of those that the model computed after that task.

        With the estimates, a vector index built at that time can still be searched, at a loss of recall.
        """
        index = None if as_of is None else find_task(self.model.tasks, as_of)
        return to_array(self.reader.features(self._images(x), index))

    def save(self, folder: str | Path) -> Self:
        """Write a model folder, or a further version into one that this model continues."""
        ModelStore(folder).save(self.model)
        return self

    def task(self, name: str) -> LearnedTask:
        """A learned task by its name."""
        return self.model.tasks[find_task(self.model.tasks, name)]

    @classmethod
    def load(
        cls, folder: str | Path, *, backbone: nn.Module | None = None, device: str = "auto"
    ) -> ContinualClassifier:
        """Load a model folder; a custom backbone is passed again, its weights come from the folder."""
        return cls.of(ModelStore(folder).load(), backbone=backbone, device=device)

    @classmethod
    def of(cls, model: Model, *, backbone: nn.Module | None = None, device: str = "auto") -> Self:
        """The classifier of a model."""
        check_backbone(model.settings, backbone)
        classifier = cls.__new__(cls)
        classifier._module, classifier._device, classifier._settings = backbone, device, model.settings
        classifier._model, classifier._reader = model, None
        classifier._parameters = parameters_of(model.settings, backbone, device)
        return classifier

    @property
    def reader(self) -> Reader:
        """Predicts with the current version; built on first use."""
        if self._reader is None:
            self._reader = Reader.of(self.model, self._device, self._module)
        return self._reader

    def _images(self, x: Any) -> Tensor:
        return read_images(x, self._settings.image_size)


def classifier_options() -> set[str]:
    """The names of a classifier's options that are not options of its backbone."""
    return {name for name in signature(ContinualClassifier).parameters if name != "backbone_options"}


def to_array(tensor: Tensor) -> np.ndarray:
    return np.asarray(to_host(tensor))
