"""Which parts of RFE train, and which stay frozen."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect.core import RFE
from recollect.engine import Observer, Runtime, Training
from recollect.engine.fit import Fit
from recollect.nets.resnet import ResNet18
from recollect.rng import Key
from tests.support import after_task, make_learner, make_stream, phases, teach

FORMS = ["rfe", "rfe-p", "rfe-b", "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux", "rfe-affine"]


def test_a_reservoir_trains_all_retrospectors_but_no_old_auxiliary_network() -> None:
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-b", stream, 2)
    groups = phases(learner, stream, 2)["retrospect"].groups
    chain = learner.rfe.chain
    assert {id(p) for p in groups["retrospector"]} == {id(p) for r in chain.retrospectors for p in r.parameters()}
    assert {id(p) for p in groups["auxiliary"]} >= {id(p) for p in chain.auxiliaries[2].parameters()}
    old = {id(p) for h in chain.auxiliaries[:2] for p in h.parameters()}
    assert not old & {id(p) for group in groups.values() for p in group}


@pytest.mark.parametrize("name", FORMS)
def test_old_heads_and_frozen_modules_do_not_change(name: str) -> None:
    """Bit for bit: old heads, old h's, and (but for RFE-B, which tunes them) old retrospectors."""
    stream = make_stream((2, 2, 2))
    learner = after_task(name, stream, 2)
    chain = learner.rfe.chain
    fixed: list[nn.Module] = [*learner.network.heads[:2], *chain.auxiliaries[: 1 if name == "rfe-e2e" else 2]]
    if name != "rfe-b":
        fixed += chain.retrospectors[:1]
    before = [copy.deepcopy(module.state_dict()) for module in fixed]
    moving = copy.deepcopy(learner.network.backbone.state_dict())
    for phase in learner.phases(stream.tasks[2].info):
        Fit(
            learner,
            phase,
            stream.tasks[2].train,
            stream.tasks[2].validation,
            pixels=stream.pixels,
            training=Training(epochs=1, learning_rate=1e-2, batch_size=8),
            runtime=Runtime.choose("cpu"),
            key=Key(0),
            title=phase.name,
        ).run(Observer(), lambda num_images: None)
    for module, state in zip(fixed, before, strict=True):
        assert all(torch.equal(state[key], tensor) for key, tensor in module.state_dict().items())
    assert any(not torch.equal(moving[key], tensor) for key, tensor in learner.network.backbone.state_dict().items())


@pytest.mark.parametrize("statistics", ["frozen", "batch", "adapting"])
def test_the_teacher_changes_only_by_its_statistics_policy(statistics: str) -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe", stream, teacher_statistics=statistics, epochs=2)
    seen: dict[str, dict[str, Tensor]] = {}
    original = learner.rfe.end_task

    def spy(backbone: nn.Module, **options: bool) -> None:
        original(backbone, **options)
        seen["before"] = copy.deepcopy(learner.rfe.anchor.module.state_dict())

    learner.rfe.end_task = spy
    teach(learner, stream)
    after = learner.rfe.anchor.module.state_dict()
    moved = {name for name, tensor in seen["before"].items() if not torch.equal(tensor, after[name])}
    running = {name for name in after if "running" in name or "tracked" in name}
    assert moved == (running if statistics == "adapting" else set())


@pytest.mark.parametrize(
    ("sizes", "training", "inference"),
    # The published RFE rows, in millions: split-cifar10, split-cifar100, split-tinyimagenet.
    [((2,) * 5, 23.76, 12.59), ((20,) * 5, 23.81, 12.64), ((20,) * 10, 25.63, 14.46)],
)
def test_parameter_totals_equal_the_papers(sizes: tuple[int, ...], training: float, inference: float) -> None:
    stream = make_stream(sizes, per_class=1)
    learner = make_learner("rfe", stream, backbone=ResNet18(), bias=False, auxiliary_dim=128, projection_dim=128)
    for task in stream.tasks:
        learner.begin_task(task.info)
    found = learner.parameter_counts()
    assert (round(found.training / 1e6, 2), round(found.inference / 1e6, 2)) == (training, inference)


def test_final_relu_follows_the_backbone() -> None:
    class Signed(nn.Flatten):
        feature_dim, nonnegative = 768, False

    stream = make_stream()
    for options, expected in (
        ({}, nn.ReLU),
        ({"final_relu": False}, nn.Identity),
        ({"backbone": Signed()}, nn.Identity),
    ):
        learner = make_learner("rfe", stream, **options)
        learner.begin_task(stream.tasks[0].info)
        learner.begin_task(stream.tasks[1].info)
        assert isinstance(learner.rfe.chain.retrospectors[0].final, expected)


def test_an_old_auxiliary_network_stays_in_evaluation_mode() -> None:
    class Norm(nn.Module):
        dim = 4

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(768, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)  # type: ignore[no-any-return]

    rfe = RFE(feature_dim=6, auxiliary=Norm)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(768, 6))
    x = torch.randn(8, 3, 16, 16)
    rfe.begin_task()
    rfe.end_task(backbone)
    rfe.begin_task()
    before = copy.deepcopy(rfe.chain.auxiliaries[0].state_dict())
    rfe.train()
    assert rfe.chain.auxiliaries[1].training
    assert not rfe.chain.auxiliaries[0].layers[2].training
    rfe.retrospect_loss(x, backbone(x))
    assert all(torch.equal(before[key], tensor) for key, tensor in rfe.chain.auxiliaries[0].state_dict().items())


@pytest.mark.parametrize("options", [{}, {"form": "no-aux"}, {"end_to_end": True}])
def test_new_modules_are_on_the_device_of_the_old_ones(options: dict[str, Any]) -> None:
    rfe, backbone = RFE(feature_dim=6, auxiliary_dim=4, **options), nn.Linear(768, 6).to("meta")
    rfe.begin_task()
    rfe.to("meta")
    rfe.end_task(backbone)
    rfe.begin_task()
    assert {parameter.device.type for parameter in rfe.parameters()} == {"meta"}


def test_the_whole_chain_can_be_trained_outside_the_engine() -> None:
    rfe = RFE(feature_dim=6, auxiliary_dim=4)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(768, 6))
    for _ in range(3):
        rfe.begin_task()
        rfe.end_task(backbone)
    assert len(rfe.retrospect_parameters(whole_chain=True)) == 2 * 10
    assert all(parameter.requires_grad for parameter in rfe.retrospect_parameters(whole_chain=True))


def test_an_affine_retrospector_is_computed_from_the_tasks_images_when_the_task_ends() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe-affine", stream, epochs=3)
    teach(learner, stream)
    assert list(phases(learner, stream, 1)) == ["fit"]
    task = stream.tasks[1]
    x = stream.pixels.normalise(task.train.take(torch.arange(len(task.train)))[0])
    with torch.no_grad():
        f, then = learner.eval().network.backbone(x), learner.rfe.anchor(x)
        drifted, rectified = (nn.functional.mse_loss(g, then) for g in (f, learner.rfe.chain.hop(0, f, x)))
    assert rectified < 0.7 * drifted
