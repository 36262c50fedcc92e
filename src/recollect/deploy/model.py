"""What a model is: how it learns, what it keeps of each task, and its tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from recollect.errors import UserError

FORMAT = 4


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
    """A phase ends early after so many epochs without a better validation loss, with the best weights."""
    alpha: float = 1.0
    seed: int = 0
    flip: bool = True
    precision: str = "fp32"

    def __post_init__(self) -> None:
        numbers = {
            "image_size": (16, 1024),
            "epochs": (1, 100_000),
            "batch_size": (2, 65_536),
            "patience": (0, 100_000),
        }
        for name, (least, most) in numbers.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise UserError(f"{name} is a whole number from {least} to {most}, got {value!r}")
        if type(self.seed) is not int or type(self.flip) is not bool:
            raise UserError(f"seed is a whole number and flip true or false, got {self.seed!r} and {self.flip!r}")
        for name, above in (("learning_rate", 0.0), ("alpha", -1e-12)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < 1e6:
                raise UserError(f"{name} is a number from 0 up, got {value!r}")


@dataclass(frozen=True)
class Typical:
    """What is usual of the newest task's validation images."""

    mean: tuple[float, ...]
    """Of their features, value by value."""
    deviation: tuple[float, ...]
    num_images: int
    sure: float
    """Mean probability of the likeliest of all classes."""


@dataclass(frozen=True)
class LearnedTask:
    """What is kept of a task: names and numbers."""

    name: str
    classes: tuple[str, ...]
    images: dict[str, int]
    accuracy: float | None
    """Percent of its validation images classified right within the task, when it was learned."""
    across: float | None
    """The same among all classes then known."""
    temperature: float
    """Of its probabilities, chosen on those images."""
    drifted: float | None
    """RMSE that learning it moved the features of its validation images by."""
    rectified: float | None
    """RMSE that the retrospector leaves of that."""
    learned: str
    seconds: float
    learn: str
    """Names the learn that made it, by images, settings and the model before."""


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
    typical: Typical | None = None
    """None where no images of the newest task were held out."""
    checks: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """By the digest of a task's test images: what `check` found first, while nothing was learned after the task."""

    def to_json(self) -> dict[str, Any]:
        plain = {key: value for key, value in asdict(replace(self, tensors={})).items() if key != "tensors"}
        return {"format": FORMAT, **plain}
