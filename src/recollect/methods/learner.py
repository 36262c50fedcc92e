"""The contract of a method. One file that defines a `Learner`, its config and a table `METHODS` is a new method.

The engine calls, for each task: `begin_task`, then every phase of `phases` epoch by epoch, then `end_task`. It reads
`scores` for both evaluations. Extra training is another phase, so progress, plateau, timing and resume cover it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import torch
from torch import Tensor, nn

from recollect.core import Averaged
from recollect.errors import UserError
from recollect.memory import Memory
from recollect.methods._heads import read_features, start_heads
from recollect.nets import Network
from recollect.registry import discover
from recollect.rng import Key
from recollect.streams import OMITTED, Batch, TaskData, TaskInfo

Units = Literal["seen", "task", "all"]
Gentle = Literal["never", "always", "pretrained"]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a phase trains."""

    epochs: int
    learning_rate: float
    patience: int = 0
    """A phase ends early after so many epochs without a better validation loss, with the best weights; 0 is never."""
    seconds: float = 0.0
    """Time for it; it ends before the epoch that would exceed that, after one at least. 0 is no limit."""

    def part(self, share: float) -> Schedule:
        """The schedule with a share of its time."""
        return replace(self, seconds=share * self.seconds)


@dataclass(frozen=True)
class Setup:
    """What the harness tells a method about the run."""

    image_shape: tuple[int, int, int]
    schedule: Schedule
    key: Key
    flips: bool = False
    """Whether training mirrors images, as a mirrored image is still of its class."""


class Update(Protocol):
    """Backward and optimiser step; afterwards the parameters have moved.

    `edit` is given the gradients in between, in the order of the phase's parameters, and may change them in place; a
    parameter that the loss does not reach has a gradient of zero.
    """

    def __call__(self, loss: Tensor, edit: Callable[[list[Tensor]], None] | None = None) -> None: ...

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The gradients of another loss, as `edit` is given them; nothing moves."""
        ...


class Validation(NamedTuple):
    """Mean loss of each parameter group on a batch, and where known how many images were classified correctly."""

    losses: Mapping[str, Tensor]
    num_correct: Tensor | None = None


@dataclass(frozen=True)
class CachedFunctions:
    """Functions of a view that do not change while a phase trains, so that each view needs them only once."""

    functions: Mapping[str, Callable[[Tensor], Tensor]]
    views: int
    """Cached views per image, a different one each epoch; 0 computes the functions on a fresh view every time."""
    max_bytes: int
    """Budget of the outputs; as many views are cached as fit, and if not even one does, views are fresh."""
    memory: Memory | None = None
    """A memory whose samples are viewed too, by `batch.recall`; they have a budget of the same size."""
    memory_key: Key = field(default_factory=lambda: Key(0))
    """Decides the views of the memory's samples."""

    @torch.no_grad()
    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        """Compute the functions."""
        return {name: function(x) for name, function in self.functions.items()}


@dataclass(frozen=True)
class Phase:
    """One stretch of training: each group of parameters has its own plateau on its own validation loss."""

    name: str
    groups: Mapping[str, Sequence[nn.Parameter]]
    step: Callable[[Batch, Update], None]
    validate: Callable[[Batch], Validation]
    schedule: Schedule
    training: Sequence[nn.Module]
    """Modules in training mode; all others evaluate."""
    cached: CachedFunctions | None = None
    """What does not change during the phase; the engine gives its outputs with every batch, as `batch.cached`."""


@dataclass(frozen=True)
class Scores:
    """Ranking scores over all units: read within the task (til), over all tasks (cil)."""

    til: Tensor
    cil: Tensor
    til_without_chain: Tensor | None = None
    """`til` with today's features in place of what a chain makes of them, for methods that have one."""


Reader = Callable[[Tensor], Scores]


@dataclass(frozen=True)
class Parameters:
    """Parameter counts held while training and needed at inference."""

    training: int
    inference: int


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Options shared by methods that train a backbone with its heads."""

    gentle: Gentle = field(default="never", metadata=OMITTED)
    """Whether to initialise heads as linear discriminants and freeze BatchNorm statistics, as `rfe-plus` does."""

    def __post_init__(self) -> None:
        if self.gentle not in get_args(Gentle):
            raise UserError(f"gentle is 'never', 'always' or 'pretrained', got {self.gentle!r}")


@dataclass(frozen=True, kw_only=True)
class BaselineConfig(TrainingConfig):
    """Options shared by methods that train one classifier."""

    units: Units = "seen"
    """Cross-entropy over units seen so far, of the image's own task (old heads frozen), or all (with fixed heads)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units not in get_args(Units):
            raise UserError(f"units is 'seen', 'task' or 'all', got {self.units!r}")


def check_heads(config: object, *, fixed: bool) -> None:
    """Refuse a cross-entropy over units that do not exist yet."""
    if isinstance(config, BaselineConfig) and config.units == "all" and not fixed:
        raise UserError(
            "units=all includes the units of future tasks, which exist only with fixed heads; "
            "add --fixed-heads or use units=seen"
        )


Config = TypeVar("Config")


class Learner(nn.Module, ABC, Generic[Config]):
    """A classifier that learns task by task. Its shape depends only on its config and the tasks begun."""

    together: ClassVar[bool] = False
    """Whether all tasks are learned at once."""
    one_unit_per_class: ClassVar[bool] = True
    """Whether a class that returns in a later task has its unit already; else each task's head has one for it."""

    def __init__(self, network: Network, config: Config, setup: Setup) -> None:
        super().__init__()
        check_heads(config, fixed=bool(network.fixed_heads))
        self.network = network
        self.config = config
        self.setup = setup

    @property
    def is_gentle(self) -> bool:
        """Whether heads start as discriminants of the features, and BatchNorm keeps its statistics."""
        gentle: Gentle = getattr(self.config, "gentle", "never")
        return gentle == "always" or (gentle == "pretrained" and self.network.is_pretrained)

    def begin_task(self, task: TaskInfo) -> None:
        """Grow modules; nothing else."""
        self.network.begin_task(task.num_classes, task.units)

    def prepare_task(self, task: TaskInfo, data: TaskData) -> None:
        """Set what training starts from, by the task's unaugmented training images."""
        if self.is_gentle and task.units is None:  # else the unit of a class may be in another task's head
            f, head = read_features(self.network.backbone, self.setup.image_shape, data), self.network.heads[task.index]
            start_heads([head], f, data.labels - self.network.units(task.index).start)
            for copy in (module for module in self.modules() if isinstance(module, Averaged)):
                copy.module.get_submodule(f"heads.{task.index}").load_state_dict(head.state_dict())

    @abstractmethod
    def phases(self, task: TaskInfo) -> Iterable[Phase]:
        """The training of a task, in order."""

    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        """Write memories and take statistics, from the task's unaugmented training images."""
        return

    def scores(self, x: Tensor) -> Scores:
        """Both evaluations from one pass."""
        logits = self.network(x)
        return Scores(til=logits, cil=logits)

    def reader(self, dtype: torch.dtype | None = None, *, without_chain: bool = False) -> Reader:
        """A read-only form of `scores` for many images, valid until the next training step; layers may hold `dtype`.

        `til_without_chain` need only be there where asked for.
        """
        return self.scores

    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """Today's features and, where there is a chain, their estimates in the space of each task."""
        return self.network.backbone(x), None

    def parameter_counts(self) -> Parameters:
        """The network alone, unless a method holds more."""
        return Parameters(count := num_parameters(self.network), count)

    def memories(self) -> list[Memory]:
        """Every store of samples, for the accounts."""
        return [module for module in self.modules() if isinstance(module, Memory)]

    def deployable_state(self) -> dict[str, Tensor]:
        """The part of `state_dict` that predicting and learning further tasks need; `begin_task` rebuilds the rest."""
        return self.state_dict()

    def load_deployable_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore `deployable_state` once the same tasks have begun; the rest stays as `begin_task` made it."""
        rest = self.state_dict()
        for name in self.deployable_state():
            del rest[name]
        self.load_state_dict({**rest, **state})

    def classifier_phase(self, task: TaskInfo, step: Callable[[Batch, Update], None], units: Units) -> Phase:
        """The usual phase: train the backbone and the heads that `units` says; watch the cross-entropy."""
        network = self.network
        if units == "task" and not self.together:
            heads = network.heads_of(task.index)
        else:
            heads = network.heads if units == "all" else network.heads[: task.index + 1]

        def validate(batch: Batch) -> Validation:
            logits = network(batch.x)
            losses = {"classifier": network.cross_entropy(logits, batch.y, units)}
            return Validation(losses, num_correct(logits[:, network.seen()], batch.y))

        groups = {"classifier": [*network.learnable(), *heads.parameters()]}
        awake = [heads] if self.is_gentle else [network.backbone, heads]
        return Phase("fit", groups, step, validate, self.setup.schedule, awake)


def num_correct(scores: Tensor, y: Tensor) -> Tensor:
    """How many rows have their largest score at y, on the device."""
    return (scores.argmax(dim=1) == y).sum()


def num_parameters(*modules: nn.Module) -> int:
    """Parameters of the modules together."""
    return sum(p.numel() for module in modules for p in module.parameters())


class Method(NamedTuple):
    """A row of a method file's table: the learner, its default config, and all that other parts of recollect show."""

    learner: type[Learner[Any]]
    config: Any
    about: str
    cost: float = 1.0
    """Training time relative to training the backbone alone (docs/speed.md), for estimates of sweeps."""
    copies: int = 1
    """Copies of the network's weights in a checkpoint, or as many values per weight, for estimates of disk space."""
    contents: Mapping[str, str] = MappingProxyType({})
    """What its tensors are, for `recollect audit`: by the name of an attribute, or its start if that ends in `_`."""
    colour: str = ""
    """Its colour in figures and on pages, as #rrggbb; by default one that follows from its name."""
    order: int = 1000
    """Where it stands in tables and figures, smallest first; methods of the same order are sorted by name."""
    marker: str = ""
    """Matplotlib's name of its points' shape: one of `o s ^ D v X`; by default one that follows from its name."""
    pretrained: Mapping[str, Any] = MappingProxyType({})
    """Defaults that differ from those of `config` where the backbone has pretrained weights."""


def methods() -> dict[str, Method]:
    """All registered methods."""
    return discover("recollect.methods", "METHODS")
