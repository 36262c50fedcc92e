"""Every registered method passes the conformance suite, and the suite catches methods that break the contract."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect import testing
from recollect.core import Frozen
from recollect.memory import Memory
from recollect.methods import BaselineConfig, Learner, Method, Phase, Scores, methods
from recollect.methods.learner import Parameters, Update, num_parameters
from recollect.nets.resnet import ResNet18
from recollect.streams import Batch, TaskInfo
from tests.support import Plain, make_learner, make_stream


@pytest.mark.parametrize("name", sorted(methods()))
@pytest.mark.parametrize("check", [*testing.CHECKS, testing.memory_stays_within_its_budget], ids=lambda c: c.__name__)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_method_conforms(name: str, check: Any) -> None:
    check(testing.make_small(methods()[name]))  # raises what it expected


class Wanders(Plain):
    def step(self, batch: Batch, update: Update) -> None:
        super().step(batch, update)
        with torch.no_grad():
            self.network.heads[-1].bias.add_(random.SystemRandom().random())  # hangs on no key


class MovesOldHeads(Plain):
    def step(self, batch: Batch, update: Update) -> None:
        super().step(batch, update)
        with torch.no_grad():
            self.network.heads[0].weight.mul_(0.9)


class Forgets(Plain):
    """Keeps something outside its state."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.momentum = 0.0

    def step(self, batch: Batch, update: Update) -> None:
        self.momentum = 0.9 * self.momentum + 0.1
        update(self.momentum * self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


class Misshapen(Plain):
    def scores(self, x: Tensor) -> Scores:
        logits = self.network(x)
        return Scores(til=logits, cil=logits[:, :-1])


class Hoards(Plain):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.memory = Memory(500, self.setup.image_shape)


class NeverStores(Plain):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.memory = Memory(6, self.setup.image_shape)


class Hides(Plain):
    """Keeps images where no account sees them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("secret", torch.zeros(4, *self.setup.image_shape))

    def parameter_counts(self) -> Parameters:
        counts = super().parameter_counts()
        return replace(counts, training=counts.training + self.secret.numel())


class LearnsNothing(Plain):
    def step(self, batch: Batch, update: Update) -> None:
        update(0 * self.network(batch.x).sum())


class Climbs(Plain):
    """Goes up the gradient, and says what its loss is."""

    def step(self, batch: Batch, update: Update) -> None:
        loss = self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units)
        update(loss, lambda gradients: [g.neg_() for g in gradients])


class ReadsOtherwise(Plain):
    def reader(self, dtype: torch.dtype | None = None, *, without_chain: bool = False) -> Any:
        return lambda x: Scores(til=self.network(x).flip(1), cil=self.network(x))


class LooksAround(Plain):
    """Scores an image by the batch that it comes in."""

    def scores(self, x: Tensor) -> Scores:
        logits = self.network(x - x.mean(dim=0))
        return Scores(til=logits, cil=logits)


class Breaks(Plain):
    """Has no number for some images."""

    def scores(self, x: Tensor) -> Scores:
        logits = self.network(x)
        logits = torch.where(torch.arange(len(x))[:, None] > 8, torch.nan, logits)
        return Scores(til=logits, cil=logits)


class CountsReadings(Plain):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("num_read", torch.zeros(()))

    def scores(self, x: Tensor) -> Scores:
        self.num_read += len(x)
        return super().scores(x)


class HalvesAHead(Plain):
    def end_task(self, task: TaskInfo, data: Any) -> None:
        with torch.no_grad():
            self.network.heads[0].weight.mul_(0.5)


class Thaws(Plain):
    """Trains what its user froze."""

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        for phase in super().phases(task):
            everything = [*self.network.backbone.parameters(), *self.network.heads.parameters()]
            yield replace(phase, groups={"classifier": everything})


class CountsTooFew(Plain):
    """Does not count its teacher."""

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        self.teacher = Frozen(self.network.backbone)


class CountsNoStatistics(Plain):
    """Does not count what it holds for each weight."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for index, parameter in enumerate(self.network.learnable()):
            self.register_buffer(f"importance_{index}", torch.zeros_like(parameter))


@dataclass(frozen=True, kw_only=True)
class Exemplars(BaselineConfig):
    exemplars: int = 200
    """Samples kept."""


class Keeps(Plain):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.memory = Memory(self.config.exemplars, self.setup.image_shape)

    def end_task(self, task: TaskInfo, data: Any) -> None:
        rows, slots = self.memory.admit(len(data), (data.key / "memory").generator())
        for batch in data.batches(rows):
            self.memory.write(slots, batch.images, batch.y, task.index)


@dataclass(frozen=True, kw_only=True)
class Undocumented(BaselineConfig):
    secret: int = 3


def test_the_suite_accepts_a_third_party_method() -> None:
    testing.check_method(Method(Plain, BaselineConfig(), "plain"))
    testing.check_method(Method(Keeps, Exemplars(), "keeps"), small={"exemplars": 4}, budget=4)
    with pytest.raises(AssertionError, match="the budget is 6|budget of 6"):
        testing.check_method(Method(Keeps, Exemplars(), "keeps"))
    testing.check_method("er", small={"memory": 3}, budget=3)


@pytest.mark.parametrize(
    ("learner", "config", "message"),
    [
        (Wanders, BaselineConfig(), "same seed|differs in"),
        (MovesOldHeads, BaselineConfig(units="task"), "moved .*heads.0.weight"),
        (Forgets, BaselineConfig(), "stopped at|after a stop"),
        (Misshapen, BaselineConfig(), "cil has shape"),
        (Hoards, BaselineConfig(), "room for more than the budget of 6"),
        (NeverStores, BaselineConfig(), "a memory is empty after a task"),
        (Hides, BaselineConfig(), "secret looks like images, outside a Memory"),
        (LearnsNothing, BaselineConfig(), "the loss went from"),
        (Climbs, BaselineConfig(), "the loss went from"),
        (ReadsOtherwise, BaselineConfig(), "til differs between reader and scores"),
        (LooksAround, BaselineConfig(), "til depends on other images"),
        (Breaks, BaselineConfig(), "til is not finite for every image"),
        (CountsReadings, BaselineConfig(), "reading changed .'num_read'"),
        (HalvesAHead, BaselineConfig(), "end_task moved .'network.heads.0.weight'"),
        (Thaws, BaselineConfig(), "moved in layers that were frozen"),
        (CountsTooFew, BaselineConfig(), "with its frozen and averaged networks it holds"),
        (CountsNoStatistics, BaselineConfig(), "with the numbers in its buffers it holds"),
        (Plain, Undocumented(), "options without a line about them: .'secret'"),
    ],
)
def test_the_suite_rejects_a_broken_method(learner: type[Learner[Any]], config: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        testing.check_method(Method(learner, config, "broken"))


# The paper's TIL table, in millions: (training, inference) on split-cifar10, split-cifar100, split-tinyimagenet.
ONE = [(11.17, 11.17), (11.22, 11.22), (11.27, 11.27)]
RFE_ROW = [(23.76, 12.59), (23.81, 12.64), (25.63, 14.46)]
PAPER = dict.fromkeys(("joint", "finetune", "agem", "er", "derpp", "er-ace"), ONE) | {
    "er-mkd": [(22.35, 11.17), (22.44, 11.22), (22.54, 11.27)],
    "tamil": [(22.68, 11.51), (22.77, 11.60), (23.20, 12.03)],
    "cls-er": [(33.52, 11.17), (33.66, 11.22), (33.81, 11.27)],
    "rfe": RFE_ROW,
    "rfe-p": RFE_ROW,
    "rfe-b": RFE_ROW,
}
STREAMS = [(2,) * 5, (20,) * 5, (20,) * 10]


@pytest.mark.parametrize("name", sorted(PAPER))
def test_parameter_counts_equal_the_papers_table(name: str) -> None:
    for sizes, published in zip(STREAMS, PAPER[name], strict=True):
        stream = make_stream(sizes, per_class=1)
        paper = {"bias": False, "auxiliary_dim": 128, "projection_dim": 128, "attention_dim": 64}
        learner = make_learner(name, stream, backbone=ResNet18(), **paper)
        for task in stream.tasks:
            learner.begin_task(task.info)
        found = learner.parameter_counts()
        training, inference = found.training, found.inference
        if name == "tamil":  # the published inference counts hold the heads twice
            inference += sum(parameter.numel() for parameter in learner.network.heads.parameters())
        assert (training / 1e6, inference / 1e6) == pytest.approx(published, abs=0.0101)


@pytest.mark.parametrize(("name", "numbers_per_weight"), [("ewc", 2), ("si", 3)])
def test_numbers_held_for_each_weight_are_counted_in_training(name: str, numbers_per_weight: int) -> None:
    stream = make_stream((2, 2))
    learner = make_learner(name, stream)
    for task in stream.tasks:
        learner.begin_task(task.info)
    counts, num_weights = learner.parameter_counts(), sum(p.numel() for p in learner.network.learnable())
    assert counts.inference == num_parameters(learner.network)
    assert counts.training == counts.inference + numbers_per_weight * num_weights


def test_statistics_of_rfe_plus_are_counted_in_training() -> None:
    """All that it holds but BatchNorm's statistics, and the adapter and auxiliary network of the next retrospector."""
    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe-plus", stream)
    for task in stream.tasks:
        learner.begin_task(task.info)
    parts = [module for module in learner.modules() if not isinstance(module, nn.BatchNorm2d)]
    own = [buffer for part in parts for buffer in part.buffers(recurse=False) if buffer.is_floating_point()]
    chain = learner.rfe.chain
    held = num_parameters(learner) - num_parameters(chain.auxiliaries[chain.num_hops :], learner.rfe.adapter)
    assert learner.parameter_counts().training == held + sum(buffer.numel() for buffer in own)
