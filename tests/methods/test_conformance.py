"""Every registered method passes the conformance suite, and the suite catches methods that break the contract."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect import testing
from recollect.memory import Memory
from recollect.methods import BaselineConfig, Learner, Method, Phase, Scores, methods
from recollect.methods.learner import Update
from recollect.nets.resnet import ResNet18
from recollect.streams import Batch, TaskInfo
from tests.conftest import make_learner, make_stream


@pytest.mark.parametrize("name", sorted(methods()))
@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_method_conforms(name: str, check: Any) -> None:
    check(methods()[name])
    assert check in testing.CHECKS


class Plain(Learner[BaselineConfig]):
    """A method that conforms, to be broken below."""

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, self.config.units)

    def step(self, batch: Batch, update: Update) -> None:
        update(self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


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


@dataclass(frozen=True, kw_only=True)
class Undocumented(BaselineConfig):
    secret: int = 3


def test_the_suite_passes_a_third_partys_method() -> None:
    testing.check_method(Method(Plain, BaselineConfig(), "plain"))
    assert Plain.together is False


@pytest.mark.parametrize(
    ("learner", "config", "message"),
    [
        (Wanders, BaselineConfig(), "same seed|differs in"),
        (MovesOldHeads, BaselineConfig(units="task"), "moved .*heads.0.weight"),
        (Forgets, BaselineConfig(), "stopped at|after a stop"),
        (Misshapen, BaselineConfig(), "cil has shape"),
        (Hoards, BaselineConfig(), "the budget is 6, not 500"),
        (Plain, Undocumented(), "options without a line about them: .'secret'"),
    ],
)
def test_the_suite_catches(learner: type[Learner[Any]], config: Any, message: str) -> None:
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
