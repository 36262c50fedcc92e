"""rfe-plus: Gaussians that follow the drift; gentle training of pretrained backbones, by its rivals too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recollect.core import Averaged
from recollect.errors import UserError
from recollect.methods._heads import start_heads
from recollect.rng import Key
from recollect.streams import TaskData
from tests.methods.support import pretrained
from tests.support import make_learner, make_stream, teach

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
