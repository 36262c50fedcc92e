"""The mean of weights after each task, and mirrored images, which rfe-plus has with pretrained weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect import testing
from recollect.core import Frozen
from recollect.errors import UserError
from recollect.methods import methods
from recollect.methods._averaging import continue_with_mean
from recollect.rng import Key
from recollect.streams import Stream, TaskData, TaskInfo
from recollect.testing import checks, harness
from tests.methods.support import pretrained
from tests.support import make_learner, make_stream, teach


def test_averaging_continues_with_the_mean_of_the_weights_after_each_task() -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), form="affine", alpha=0.0, averaging=True)
    begun, ended = watched(learner)
    teach(learner, stream)
    assert torch.equal(begun[1], ended[0])
    assert torch.allclose(begun[2], (begun[1] + ended[1]) / 2, atol=1e-6)
    assert torch.allclose(weights(learner.network.backbone), (2 * begun[2] + ended[2]) / 3, atol=1e-6)
    assert (ended[2] - begun[2]).abs().max() > 1e-4


def test_the_chain_starts_from_the_features_of_the_mean() -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), form="affine", averaging=True).eval()
    read: list[Tensor] = []
    fit_affine = learner.rfe.fit_affine

    @torch.no_grad()
    def fit(f: Tensor, target: Tensor) -> None:
        task = stream.tasks[len(read) + 1]
        x = stream.pixels.normalise(task.train.take(torch.arange(len(task.train)))[0])
        read.append(learner.network.backbone.eval()(x))
        assert torch.allclose(f, read[-1], atol=1e-4)
        fit_affine(f, target)

    learner.rfe.fit_affine = fit
    teach(learner, stream)
    assert len(read) == 2


def watched(learner: Any, adapted: tuple[int, ...] = (0, 1, 2)) -> tuple[list[Tensor], list[Tensor]]:
    """The weights that each task will begin with, and those that it will have trained; `adapted` tasks train them."""
    begun: list[Tensor] = []
    ended: list[Tensor] = []
    begin_task, end_task = learner.begin_task, learner.end_task

    def begin(task: TaskInfo) -> None:
        learner.adapts = task.index in adapted
        begun.append(weights(learner.network.backbone))
        begin_task(task)

    def end(task: TaskInfo, data: TaskData) -> None:
        ended.append(weights(learner.network.backbone))
        end_task(task, data)

    learner.begin_task, learner.end_task = begin, end
    return begun, ended


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_a_head_follows_the_mean_of_the_weights() -> None:
    stream = make_stream((2, 2), per_class=60)
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), form="affine").eval()
    for task in stream.tasks:
        learner.begin_task(task.info)
    network, task = learner.network, stream.tasks[1]
    before = Frozen(network.backbone).module
    with torch.no_grad():
        for parameter in network.backbone.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    images, _ = task.train.take(torch.arange(len(task.train)))
    x = stream.pixels.normalise(images)
    old_head = Frozen(network.heads[1])
    with torch.no_grad():
        trained = network.heads[1](network.backbone(x))
        data = TaskData(task.train, stream.pixels, x.device, 16, Key(0))
        f = continue_with_mean(network.backbone, network.heads[1], before, 0.5, stream.image_shape, data)
        assert torch.allclose(f, network.backbone(x), atol=1e-4)
        carried, left = (head(f).sub(trained).square().mean() for head in (network.heads[1], old_head))
        assert torch.allclose(network.heads[1](f).mean(0), trained.mean(0), atol=1e-4)  # its bias too
    assert carried < 0.3 * left


def test_the_anchor_reads_mirrored_images() -> None:
    stream = make_stream((2, 2))
    stream = replace(stream, pixels=replace(stream.pixels, flip=True))
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), views=2, mirror=True)
    teach(learner, stream)
    learner.eval()
    anchor = learner.identity.rule.anchor.statistics
    first = learner.identity.first
    for index, task in enumerate(stream.tasks):
        images, labels = task.train.take(torch.arange(len(task.train)))
        x = stream.pixels.normalise(images)
        both = (first(x) + first(x.flip(3))) / 2
        means = torch.stack([both[labels == label].mean(0) for label in (2 * index, 2 * index + 1)])
        assert torch.allclose(anchor.means[2 * index :][:2], means, atol=1e-4)
    assert (
        anchor.counts.tolist() == torch.cat([torch.bincount(task.train.labels)[-2:] for task in stream.tasks]).tolist()
    )
    seen: list[Tensor] = []
    learner.identity.rule.evidence = lambda reading, logits: seen.append(reading.at_anchor) or torch.cat(logits, 1)
    with torch.no_grad():
        learner.scores(x)
        learner.reader()(x)
    assert len(seen) >= 2
    assert all(torch.allclose(f, first(x.flip(3)), atol=1e-4) for f in seen)


@pytest.mark.parametrize(
    ("flip", "identity", "expected"), [(True, "anchored", True), (False, "anchored", False), (True, "forward", False)]
)
def test_images_are_read_mirrored_where_training_mirrors_them(flip: bool, identity: str, expected: bool) -> None:
    stream = make_stream((2, 2))
    assert not stream.pixels.flip
    stream = replace(stream, pixels=replace(stream.pixels, flip=flip))
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), mirror=True, identity=identity, components=0)
    assert learner.identity.mirrors == expected


def test_averaging_needs_retrospectors_that_are_computed() -> None:
    with pytest.raises(UserError, match="form=gated is trained to start from f_t; use form=affine or averaging=false"):
        make_learner("rfe-plus", make_stream((2, 2)), averaging=True)


@pytest.mark.parametrize("adapted", [(1,), (0, 2)])
def test_tasks_that_do_not_train_the_backbone_have_no_part_in_the_mean(adapted: tuple[int, ...]) -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), form="affine", averaging=True)
    begun, ended = watched(learner, adapted)
    teach(learner, stream)
    for task in range(3):
        assert torch.equal(begun[task], ended[task]) == (task not in adapted)
    last, num = adapted[-1], len(adapted)
    mean = begun[last] * (1 - 1 / num) + ended[last] / num
    assert torch.allclose(weights(learner.network.backbone), mean, atol=1e-6)


MOVES = "only_trained_parameters_move"  # `end_task` moves the backbone to the mean, on purpose


@pytest.mark.parametrize("check", [c for c in testing.CHECKS if c.__name__ != MOVES], ids=lambda c: c.__name__)
def test_the_mean_and_mirrored_images_conform(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make = harness.make_stream

    def mirrored(*sizes: Any, **options: Any) -> Stream:
        stream = make(*sizes, **options)
        return replace(stream, pixels=replace(stream.pixels, flip=True))

    for module in (harness, checks):
        monkeypatch.setattr(module, "make_stream", mirrored)
    row = methods()["rfe-plus"]
    config = replace(row.config, form="affine", averaging=True, mirror=True, alpha=0.0)
    check(testing.make_small(row._replace(config=config)))
