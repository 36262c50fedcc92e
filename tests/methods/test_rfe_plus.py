"""rfe-plus: Gaussians that follow the drift; gentle training of pretrained backbones, by its rivals too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect import testing
from recollect.core import Averaged, Frozen
from recollect.errors import UserError
from recollect.methods import methods
from recollect.methods._averaging import continue_with_mean
from recollect.methods._heads import start_heads
from recollect.nets.convnet import ConvNet
from recollect.rng import Key
from recollect.streams import Stream, TaskData, TaskInfo
from recollect.testing import checks, harness
from tests.support import make_learner, make_stream, teach


def pretrained() -> nn.Module:
    with Key(0).initialising():
        backbone = ConvNet(3, 4)
    backbone.normalisation = ((0.5,) * 3, (0.5,) * 3)  # type: ignore[assignment]
    return backbone


ALWAYS_GENTLE = ("rfe-plus", "fsa", "ldc")
GENTLE_ON_REQUEST = (
    "finetune",
    "joint",
    "lwf",
    "ewc",
    "si",
    "agem",
    "er",
    "derpp",
    "er-ace",
    "er-mkd",
    "tamil",
    "cls-er",
)


@pytest.mark.parametrize("method", [*ALWAYS_GENTLE, *GENTLE_ON_REQUEST])
def test_norms_keep_their_statistics_with_pretrained_weights(method: str) -> None:
    stream, backbone = make_stream((2, 2)), pretrained()
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]  # type: ignore[union-attr]
    weight = next(backbone.parameters()).detach().clone()
    options = {"gentle": "pretrained"} if method in GENTLE_ON_REQUEST else {}
    learner = make_learner(method, stream, backbone=backbone, epochs=2, **options)
    teach(learner, stream)
    assert all(torch.equal(norm.running_mean, old) for norm, old in zip(norms, before, strict=True))  # type: ignore[arg-type]
    assert not torch.equal(next(backbone.parameters()), weight)
    if method == "rfe-plus":
        assert learner.rfe.anchor.statistics == "frozen"


def test_norms_follow_the_batch_from_scratch() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe-plus", stream, epochs=2)
    norms = [module for module in learner.network.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    teach(learner, stream)
    assert all(norm.running_mean.abs().sum() > 0 for norm in norms)  # type: ignore[union-attr]
    assert learner.rfe.anchor.statistics == "adapting"


@pytest.mark.parametrize("method", ["rfe-plus", "fsa", "er", "lwf"])
def test_new_heads_start_as_discriminants_of_pretrained_features(method: str) -> None:
    stream = make_stream((3, 3), per_class=30)
    task = stream.tasks[0]
    options = {"gentle": "pretrained"} if method in GENTLE_ON_REQUEST else {}
    learner = make_learner(method, stream, backbone=pretrained(), **options).eval()
    learner.begin_task(task.info)
    data = TaskData(task.train, stream.pixels, torch.device("cpu"), 16, Key(0))
    learner.eval().prepare_task(task.info, data)
    images, labels = task.train.take(torch.arange(len(task.train)))
    with torch.no_grad():
        logits = learner.network(stream.pixels.normalise(images))
    assert (logits.argmax(1) == labels).float().mean() > 0.8
    assert nn.functional.cross_entropy(logits, labels) < 0.9 * torch.tensor(3.0).log()


def test_joint_training_starts_as_one_discriminant_of_all_pretrained_features() -> None:
    stream = make_stream((3, 2), per_class=30)
    learner = make_learner("joint", stream, backbone=pretrained(), gentle="pretrained")
    for task in stream.tasks:
        learner.begin_task(task.info)
    for task in stream.tasks:
        learner.eval().prepare_task(task.info, TaskData(task.train, stream.pixels, torch.device("cpu"), 16, Key(0)))
    takes = [task.train.take(torch.arange(len(task.train))) for task in stream.tasks]
    images, labels = (torch.cat(parts) for parts in zip(*takes, strict=True))
    with torch.no_grad():
        logits = learner.network(stream.pixels.normalise(images))
    assert (logits.argmax(1) == labels).float().mean() > 0.8  # over the classes of both tasks


@pytest.mark.parametrize("method", ["cls-er", "er-mkd", "tamil"])
def test_averaged_networks_get_the_new_head_too(method: str) -> None:
    stream = make_stream((2, 2))
    learner = make_learner(method, stream, gentle="always").eval()
    for task in stream.tasks:
        learner.begin_task(task.info)
        learner.prepare_task(task.info, TaskData(task.train, stream.pixels, torch.device("cpu"), 16, Key(0)))
        head = learner.network.heads[task.info.index]
        averages = [module.module for module in learner.modules() if isinstance(module, Averaged)]
        assert averages
        assert all(torch.equal(average.heads[task.info.index].weight, head.weight) for average in averages)


@pytest.mark.parametrize(("method", "options"), [("joint", {}), ("er", {}), ("er", {"gentle": "never"})])
def test_a_pretrained_start_is_left_alone_unless_asked(method: str, options: dict[str, str]) -> None:
    stream = make_stream((3, 2))
    task = stream.tasks[0]
    learner = make_learner(method, stream, backbone=pretrained(), **options)
    learner.begin_task(task.info)
    before = learner.network.heads[0].weight.clone()
    learner.prepare_task(task.info, TaskData(task.train, stream.pixels, torch.device("cpu"), 16, Key(0)))
    assert torch.equal(learner.network.heads[0].weight, before)
    (phase,) = learner.phases(task.info)
    assert learner.network.backbone in phase.training


def test_gentle_training_of_a_random_start_needs_always() -> None:
    stream = make_stream((3, 2))
    chosen = {
        gentle: make_learner("er", stream, gentle=gentle).is_gentle for gentle in ("never", "pretrained", "always")
    }
    assert chosen == {"never": False, "pretrained": False, "always": True}
    with pytest.raises(UserError, match="gentle is 'never', 'always' or 'pretrained', got 'often'"):
        make_learner("er", stream, gentle="often")


def test_heads_start_the_same_under_autocast() -> None:
    generator = torch.Generator().manual_seed(0)
    f, labels = 5 + torch.randn(40, 8, generator=generator), torch.arange(40) % 4
    heads = [nn.Linear(8, 4), nn.Linear(8, 4)]
    start_heads([heads[0]], f, labels)
    with torch.autocast("cpu", torch.bfloat16):
        start_heads([heads[1]], f, labels)
    assert torch.equal(heads[0].bias, heads[1].bias)


def test_the_second_network_is_counted_and_without_it_rfe_plus_is_hardly_larger_than_rfe() -> None:
    stream, sizes = make_stream((2, 2, 2)), {}
    for name, options in (("rfe", {}), ("rfe-plus", {}), ("rfe-plus", {"identity": "forward"})):
        learner = make_learner(name, stream, **options)
        teach(learner, stream)
        sizes[name, *options] = learner.parameter_counts().inference
        network = sum(parameter.numel() for parameter in learner.network.backbone.parameters())
    assert sizes["rfe-plus",] >= sizes["rfe",] + network
    assert sizes["rfe-plus", "identity"] < 1.05 * sizes["rfe",]


@pytest.mark.parametrize("views", [1, 3])
def test_statistics_of_a_trained_network_are_of_several_views_and_those_of_the_anchor_of_one(views: int) -> None:
    stream = make_stream((3,))
    (task,) = stream.tasks
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), views=views)
    teach(learner, stream)
    rule = learner.eval().identity.rule
    images, labels = task.train.take(torch.arange(len(task.train)))
    with torch.no_grad():
        f = learner.network.backbone(stream.pixels.normalise(images))
    plain = torch.stack([f[labels == label].mean(0) for label in range(3)])
    today, anchor = rule.today.discriminant.statistics, rule.anchor.statistics
    assert today.counts.tolist() == anchor.counts.tolist() == torch.bincount(labels).tolist()  # a view is no image
    assert torch.allclose(anchor.means, plain, atol=1e-4)
    assert torch.allclose(today.means, plain, atol=1e-4) == (views == 1)


def test_the_anchor_counts_unaugmented_images_of_later_tasks_too() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), views=3)
    teach(learner, stream)
    learner.eval()
    images, labels = stream.tasks[1].train.take(torch.arange(len(stream.tasks[1].train)))
    with torch.no_grad():
        f = learner.identity.first(stream.pixels.normalise(images))
    plain = torch.stack([f[labels == label].mean(0) for label in (2, 3)])
    assert torch.allclose(learner.identity.rule.anchor.statistics.means[2:], plain, atol=1e-4)


def test_views_do_not_depend_on_the_size_of_batches() -> None:
    stream = make_stream((2,))
    shown = []
    for size in (3, 16):
        data = TaskData(stream.tasks[0].train, stream.pixels, torch.device("cpu"), size, Key(0))
        shown.append([torch.cat([batch.x for batch in data.batches(view=view)]) for view in range(3)])
    for one, other in zip(*shown, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(shown[0][1], shown[0][2])
    assert not torch.equal(shown[0][0], shown[0][1])


def test_averaging_continues_with_the_mean_of_the_weights_after_each_task() -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe-plus", stream, backbone=pretrained(), form="affine", alpha=0.0, averaging=True)
    begun, ended = watched(learner)
    teach(learner, stream)
    assert torch.equal(begun[1], ended[0])
    assert torch.allclose(begun[2], (begun[1] + ended[1]) / 2, atol=1e-6)
    assert torch.allclose(weights(learner.network.backbone), (2 * begun[2] + ended[2]) / 3, atol=1e-6)
    assert (ended[2] - begun[2]).abs().max() > 1e-4


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
    last = weights(learner.network.backbone)
    if len(adapted) == 1:
        assert torch.equal(last, ended[1])
    else:
        assert torch.allclose(last, (begun[2] + ended[2]) / 2, atol=1e-6)


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
