"""A model: its settings, what it records about each task, and its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from recollect.core.components import MAX_COMPONENTS
from recollect.errors import UserError
from recollect.inference.tasks import IMAGE_SIZES
from recollect.streams import OMITTED

FORMAT = 5
READABLE_FORMATS = (4, 5)
EARLIER_IDENTITY: Literal["class-means"] = "class-means"
"""The rule of models whose settings do not name one."""
VALIDATION_SHARE = 0.15
"""Of a class's images that are held out."""
RANGES = {
    "image_size": IMAGE_SIZES,
    "epochs": (1, 100_000),
    "batch_size": (2, 65_536),
    "patience": (0, 100_000),
    "components": (0, MAX_COMPONENTS),
}


@dataclass(frozen=True)
class Settings:
    """How a model learns; fixed when the model is created."""

    backbone: str = "efficientnet-lite1"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    image_size: int = 0
    """Pixels along a side; 0 until the first images are seen, by which it is chosen."""
    epochs: int = 0
    """Of each phase of training, at most; 0 until the model is created: fewer with pretrained weights."""
    learning_rate: float = 5e-4
    batch_size: int = 32
    patience: int = 6
    """A phase stops after this many epochs without a better validation loss and restores the best weights."""
    alpha: float = 1.0
    seed: int = 0
    flip: bool = True
    precision: str = "fp32"
    identity: Literal["anchored", "auto", "class-means"] = "anchored"
    """The rule that ranks classes if the task is unknown (docs/methods/rfe.md). Earlier models have others;
    `auto` is anchored with a pretrained backbone and forward without."""
    form: Literal["gated", "affine"] = "gated"
    """Of the retrospectors; new models with a pretrained backbone have affine ones, which need no training."""
    averaging: bool = field(default=False, metadata=OMITTED)
    """Whether adaptation continues with the mean of the weights that tasks end with, and alpha is not used; new models
    with a pretrained backbone, unless another alpha was given."""
    components: int = 0
    """Principal components stored of each class, at most; earlier models have none."""

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            is_open = value == 0 and name in ("image_size", "epochs")
            if type(value) is not int or not (least <= value <= most or is_open):
                raise UserError(f"{name.replace('_', ' ')} is an integer from {least} to {most}, got {value!r}")
        if type(self.seed) is not int or type(self.flip) is not bool:
            raise UserError(f"seed is an integer and flip true or false, got {self.seed!r} and {self.flip!r}")
        for name, above in (("learning_rate", 0.0), ("alpha", -1e-12)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < 1e6:
                raise UserError(f"{name.replace('_', ' ')} is a number from 0 up, got {value!r}")


class FixedSettingsError(UserError):
    """Settings were given for a model that already exists."""


@dataclass(frozen=True)
class Typical:
    """Statistics of the newest task's validation images, to compare new images with."""

    mean: tuple[float, ...]
    """Mean of each feature."""
    deviation: tuple[float, ...]
    """Standard deviation of each feature."""
    num_images: int
    sure: float
    """Mean confidence: the mean probability of the predicted class, over all classes."""


class Accuracies(NamedTuple):
    """In percent of the validation images of a task, or estimated without images."""

    known: float
    """With the task known."""
    unknown: float
    """Over all classes learned by then."""


@dataclass(frozen=True)
class LearnedTask:
    """What a model records about a task: names and numbers."""

    name: str
    classes: tuple[str, ...]
    images: dict[str, int]
    """Number of images per class."""
    accuracy: float | None
    """Validation accuracy in percent with the task known, when it was learned."""
    across: float | None
    """Validation accuracy in percent over all classes learned by then."""
    temperature: float
    """Calibrates the probabilities within the task; fitted on its validation images."""
    drifted: float | None
    """RMSE between the features of its validation images before and after it was learned."""
    rectified: float | None
    """The same RMSE once the retrospector has been applied: the residual drift."""
    learned: str
    """Date and time."""
    seconds: float
    learn: str
    """Identifies the learn by its images, settings and the model before it."""
    adapted: bool = True
    """Whether the backbone was trained on the task; else it has a head and statistics alone."""
    unadapted: Accuracies | None = None
    """Its validation accuracies before the backbone was adapted to it."""
    now: Accuracies | None = None
    """Its accuracies after the newest task, estimated without images; None for the newest task itself."""
    merged_units: tuple[str, ...] = ()
    """The class of each unit, if classes were merged; otherwise every class has one unit."""
    edits: tuple[str, ...] = ()
    """Identify the edits of classes (rename, merge, forget) made after it was learned and before the next task was."""

    def __post_init__(self) -> None:
        if self.merged_units and tuple(dict.fromkeys(self.merged_units)) != self.classes:
            raise ValueError(f"the units of the task {self.name!r} do not fit its classes")

    @property
    def units(self) -> tuple[str, ...]:
        """The class of each output unit of the task's head."""
        return self.merged_units or self.classes


@dataclass(frozen=True)
class Model:
    """One version of a model: all that predicting and learning more need."""

    settings: Settings
    mean: tuple[float, ...]
    std: tuple[float, ...]
    tasks: tuple[LearnedTask, ...]
    temperature: float
    """Calibrates the probabilities over all classes."""
    tensors: dict[str, Tensor] = field(repr=False)
    typical: Typical | None = None
    """None if the newest task had no validation images."""
    checks: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """By the digest of test images and task: the accuracies of the first `check` made while the task was the newest."""

    @property
    def classes(self) -> list[str]:
        """The names of all classes, in the order in which they were first learned."""
        return list(dict.fromkeys(self.units))

    @property
    def units(self) -> list[str]:
        """The class of each output unit; a class that was merged, or that several tasks contain, has several units."""
        return [name for task in self.tasks for name in task.units]

    @property
    def lineage(self) -> list[str]:
        """Identifiers of the learns and edits that led to this version, oldest first."""
        return lineage_of(self.tasks)

    def to_json(self) -> dict[str, Any]:
        values = {key: value for key, value in asdict(replace(self, tensors={})).items() if key != "tensors"}
        return {"format": FORMAT, **values}


def lineage_of(tasks: Iterable[LearnedTask]) -> list[str]:
    """Identifiers of the learns of tasks and of the edits after each, oldest first."""
    return [identifier for task in tasks for identifier in (task.learn, *task.edits)]
