"""RFE as the paper states it: losses against naive computations, what is frozen, what is kept, what is read."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core import RFE
from recollect.engine import Engine, Observer, Runtime, Training
from recollect.engine.fit import Fit
from recollect.errors import UserError
from recollect.methods import Learner
from recollect.methods._rfe_config import RFEConfig
from recollect.methods._rfe_memory import Recall
from recollect.nets.resnet import ResNet18
from recollect.rng import Key
from recollect.streams import Batch, Stream, TaskData
from tests.support import batch_of, loss_of, make_learner, make_stream, phases, teach, with_features

FORMS = ["rfe", "rfe-p", "rfe-b", "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux"]


def after_task(name: str, stream: Stream, num: int, **options: Any) -> Learner[Any]:
    """A learner that has begun task `num` (0-based) after learning those before it; its teacher just evaluates."""
    learner = make_learner(name, stream, **({"teacher_statistics": "frozen"} | options))
    part = Stream(stream.name, stream.tasks[:num], stream.pixels, stream.image_shape)
    teach(learner, part)
    learner.begin_task(stream.tasks[num].info)
    return learner


def recall_loss(learner: Learner[Any], stream: Stream, task: int, batch: Batch, **changes: Any) -> Tensor:
    cached = phases(learner, stream, task)["retrospect"].cached
    assert cached is not None
    batch = with_features(dataclasses.replace(cached, **changes), batch)
    return Recall(learner.past, task, learner.rfe).loss(batch)


def mse(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b) ** 2).sum() / a.numel()


def test_stage_one_is_cross_entropy_plus_alpha_times_drift() -> None:
    stream = make_stream((2, 3))
    learner = after_task("rfe", stream, 1, alpha=0.7)
    batch = batch_of(stream, 1)
    student, teacher = copy.deepcopy(learner.network.backbone).train(), copy.deepcopy(learner.network.backbone).eval()
    f = student(batch.x)
    expected = F.cross_entropy(learner.network.heads[1](f), batch.y - 2) + 0.7 * mse(f, teacher(batch.x))
    assert torch.allclose(loss_of(phases(learner, stream, 1)["fit"], batch), expected, atol=1e-6)


def test_stage_one_adds_a_second_mean_over_memory() -> None:
    stream = make_stream((2, 3))
    learner = after_task("rfe-b", stream, 1, alpha=0.7)
    batch = batch_of(stream, 1)
    student, teacher = copy.deepcopy(learner.network.backbone).train(), copy.deepcopy(learner.network.backbone).eval()
    past = learner.past.memory.sample(8, batch.rng("replay"))
    view = batch.augment(past, "replayed view")
    f = student(torch.cat([batch.x, view]))
    expected = F.cross_entropy(learner.network.heads[1](f[:8]), batch.y - 2)
    expected = expected + 0.7 * (mse(f[:8], teacher(batch.x)) + mse(f[8:], teacher(view)))
    assert torch.allclose(loss_of(phases(learner, stream, 1)["fit"], batch), expected, atol=1e-6)


def test_end_to_end_has_the_gradient_flow_through_r_into_f() -> None:
    stream = make_stream((2, 3))
    learner = after_task("rfe-e2e", stream, 1, alpha=0.7)
    batch = batch_of(stream, 1)
    assert list(phases(learner, stream, 1)) == ["fit"]
    student, teacher = copy.deepcopy(learner.network.backbone).train(), copy.deepcopy(learner.network.backbone).eval()
    r, h = learner.rfe.chain.retrospectors[0], learner.rfe.chain.auxiliaries[0]
    f = student(batch.x)
    drift = mse(r(f, h(batch.x)), teacher(batch.x))
    expected = F.cross_entropy(learner.network.heads[1](f), batch.y - 2) + 0.7 * drift
    loss = loss_of(phases(learner, stream, 1)["fit"], batch)
    assert torch.allclose(loss, expected, atol=1e-6)
    trained = {id(p) for group in phases(learner, stream, 1)["fit"].groups.values() for p in group}
    assert all(id(p) in trained for p in (*r.parameters(), *h.parameters(), *learner.network.backbone.parameters()))
    for mine, theirs in zip(learner.network.backbone.parameters(), student.parameters(), strict=True):
        mine.requires_grad_(True)
        theirs.requires_grad_(True)
    ours = torch.autograd.grad(
        loss_of(phases(learner, stream, 1)["fit"], batch), list(learner.network.backbone.parameters())
    )
    f = student(batch.x)
    naive = F.cross_entropy(learner.network.heads[1](f), batch.y - 2) + 0.7 * mse(r(f, h(batch.x)), teacher(batch.x))
    for a, b in zip(ours, torch.autograd.grad(naive, list(student.parameters())), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_stage_two_distils_h_and_fits_r_with_h_frozen() -> None:
    stream = make_stream((2, 3))
    learner = after_task("rfe", stream, 1)
    batch, chain = batch_of(stream, 1), learner.rfe.chain
    with torch.no_grad():
        for parameter in learner.network.backbone.parameters():
            parameter.add_(0.01)  # f_t has moved away from f_{t-1}
    learner.eval()
    phase = phases(learner, stream, 1)["retrospect"]
    f = learner.network.backbone(batch.x)
    distil = mse(learner.rfe.adapter(chain.auxiliaries[1](batch.x)), f)
    r = chain.retrospectors[0](f, chain.auxiliaries[0](batch.x))
    rectify = mse(r, learner.rfe.anchor(batch.x))
    assert torch.allclose(loss_of(phase, batch), distil + rectify, atol=1e-6)
    names = {name: {id(p) for p in group} for name, group in phase.groups.items()}
    assert names["auxiliary"] == {
        id(p) for p in (*chain.auxiliaries[1].parameters(), *learner.rfe.adapter.parameters())
    }
    assert names["retrospector"] == {id(p) for p in chain.retrospectors[0].parameters()}


@pytest.mark.parametrize(("stride", "target"), [(1, "view"), (1, "stored"), (2, "view")])
def test_recall_compares_each_sample_in_its_own_domain(stride: int, target: str) -> None:
    """Sample by sample: newest domain against the teacher on the same view, older ones against what was stored."""
    stream = make_stream((2, 2, 2, 2))
    learner = after_task("rfe-b", stream, 3, memory=30, stride=stride, memory_target=target, views=0)
    batch, chain, memory = batch_of(stream, 3), learner.rfe.chain, learner.past.memory
    learner.eval()
    newest_domain = {1: 2, 2: 2}[stride]
    past = memory.sample(8, batch.rng("recall"))
    views, plain = batch.augment(past, "recalled view"), batch.normalise(past.images)
    errors, domains = [], set()
    for i in range(8):
        domain = int(past.values["domain"][i])
        domains.add(domain)
        is_newest = domain >= newest_domain
        x = (views if is_newest or target == "stored" else plain)[i : i + 1]
        f = chain.rewind(x, learner.network.backbone(x), to=min(domain, newest_domain))
        wanted = learner.rfe.anchor(x) if is_newest and target == "view" else past.values["feature"][i : i + 1]
        errors.append(mse(f, wanted))
    assert len(domains) > 1
    assert torch.allclose(recall_loss(learner, stream, 3, batch), torch.stack(errors).mean(), atol=1e-5)


@pytest.mark.parametrize("target", ["view", "stored"])
def test_recall_on_kept_views_is_recall_on_those_views(target: str) -> None:
    """The same naive sum, over the views that were drawn for the samples when the phase began."""
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-b", stream, 2, memory=20, memory_target=target, views=3)
    batch, chain, memory = batch_of(stream, 2), learner.rfe.chain, learner.past.memory
    learner.eval()
    moves = [stream.pixels.draw(20, (Key(5) / view).generator()) for view in range(3)]
    slots = memory.sample(8, batch.rng("recall")).slots
    chosen = torch.randint(0, 3, (8,), generator=batch.rng("recalled view")).tolist()
    errors, kinds = [], set()
    for slot, view in zip(slots.tolist(), chosen, strict=True):
        image, domain = memory.images[slot : slot + 1], int(memory.get_buffer("domain")[slot])
        kinds.add(domain)
        moved = stream.pixels.crop_and_flip(image, moves[view].at(torch.tensor([slot])))
        x = stream.pixels.normalise(moved if domain == 1 or target == "stored" else image)
        f = chain.rewind(x, learner.network.backbone(x), to=domain)
        stored = memory.get_buffer("feature")[slot : slot + 1]
        errors.append(mse(f, learner.rfe.anchor(x) if domain == 1 and target == "view" else stored))
    assert kinds == {0, 1}
    loss = recall_loss(learner, stream, 2, batch, memory_key=Key(5))
    assert torch.allclose(loss, torch.stack(errors).mean(), atol=1e-5)


def test_a_memory_too_large_for_the_cache_gets_fresh_views() -> None:
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-b", stream, 2, memory=20, views=3)
    batch = batch_of(stream, 2)
    fresh = recall_loss(learner, stream, 2, batch, views=0)
    tight = recall_loss(learner, stream, 2, batch, max_bytes=100)
    assert torch.equal(fresh, tight)
    assert not torch.equal(fresh, recall_loss(learner, stream, 2, batch))


def test_stored_features_are_taken_on_the_plain_image_at_the_end_of_the_own_task() -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe-b", stream, memory=12)
    kept = []
    for num in range(1, 4):
        part = Stream(stream.name, stream.tasks[:num], stream.pixels, stream.image_shape)
        learner = make_learner("rfe-b", stream, memory=12)
        teach(learner, part)
        memory = learner.past.memory
        now = memory.tasks[: len(memory)] == num - 1
        x = stream.pixels.normalise(memory.images[: len(memory)][now])
        learner.eval()
        with torch.no_grad():
            assert torch.allclose(
                memory.get_buffer("feature")[: len(memory)][now], learner.network.backbone(x), atol=1e-5
            )
        kept.append(
            {image.numpy().tobytes(): f for image, f in zip(memory.images, memory.get_buffer("feature"), strict=True)}
        )
    for image in kept[0].keys() & kept[2].keys():
        assert torch.equal(kept[0][image], kept[2][image])  # taken once


def test_reservoir_trains_the_whole_chain_but_no_old_h() -> None:
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-b", stream, 2)
    groups = phases(learner, stream, 2)["retrospect"].groups
    chain = learner.rfe.chain
    assert {id(p) for p in groups["retrospector"]} == {id(p) for r in chain.retrospectors for p in r.parameters()}
    assert {id(p) for p in groups["auxiliary"]} >= {id(p) for p in chain.auxiliaries[2].parameters()}
    old = {id(p) for h in chain.auxiliaries[:2] for p in h.parameters()}
    assert not old & {id(p) for group in groups.values() for p in group}


@pytest.mark.parametrize("name", FORMS)
def test_old_heads_and_frozen_modules_do_not_move(name: str) -> None:
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
def test_the_teacher_moves_only_as_its_policy_says(statistics: str) -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe", stream, teacher_statistics=statistics, epochs=2)
    seen: dict[str, dict[str, Tensor]] = {}
    original = learner.rfe.end_task

    def spy(backbone: nn.Module) -> None:
        original(backbone)
        seen["before"] = copy.deepcopy(learner.rfe.anchor.module.state_dict())

    learner.rfe.end_task = spy
    teach(learner, stream)
    after = learner.rfe.anchor.module.state_dict()
    moved = {name for name, tensor in seen["before"].items() if not torch.equal(tensor, after[name])}
    running = {name for name in after if "running" in name or "tracked" in name}
    assert moved == (running if statistics == "adapting" else set())


@pytest.mark.parametrize("name", FORMS)
def test_class_incremental_average_is_the_concatenated_softmaxes_over_n(name: str) -> None:
    stream = make_stream((2, 1, 3))
    learner = make_learner(name, stream)
    with pytest.warns(UserWarning, match="cannot rank a task of one class"):
        teach(learner, stream)
    learner.eval()
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(5))[0])
    with torch.no_grad():
        scores = learner.scores(x)
        f = learner.network.backbone(x)
        chain = learner.rfe.chain
        estimates = [f]
        for t in (1, 0):
            h = chain.auxiliaries[t](x) if chain.retrospectors[t].uses_auxiliary else None
            estimates.insert(0, chain.retrospectors[t](estimates[0], h))
        logits = [head(e) for head, e in zip(learner.network.heads, estimates, strict=True)]
        assert torch.allclose(scores.til, torch.cat(logits, 1), atol=1e-6)
        assert torch.allclose(scores.cil, torch.cat([z.softmax(1) for z in logits], 1) / 3, atol=1e-6)
        assert torch.allclose(
            scores.til_without_chain, torch.cat([head(f) for head in learner.network.heads], 1), atol=1e-6
        )


@pytest.mark.parametrize(("last_tasks", "memory"), [(1, 6), (2, 6), (2, 500)])
def test_rfe_p_holds_only_the_last_tasks_after_each_task(last_tasks: int, memory: int) -> None:
    stream = make_stream((2, 2, 2, 2))
    for num in range(1, 5):
        learner = make_learner("rfe-p", stream, memory=memory, last_tasks=last_tasks)
        teach(learner, Stream(stream.name, stream.tasks[:num], stream.pixels, stream.image_shape))
        held = learner.past.memory
        assert set(held.tasks[: len(held)].tolist()) == set(range(max(0, num - last_tasks), num))
        assert len(held) <= memory
        own = stream.tasks[num - 1].train
        images = {image.numpy().tobytes() for image in own.take(torch.arange(len(own)))[0]}
        newest = held.images[: len(held)][held.tasks[: len(held)] == num - 1]
        assert {image.numpy().tobytes() for image in newest} <= images


def test_plain_rfe_keeps_no_samples() -> None:
    learner = make_learner("rfe", make_stream())
    teach(learner, make_stream())
    assert learner.memories() == []
    assert not any(tensor.dtype == torch.uint8 for tensor in learner.state_dict().values())


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


def test_class_means_rank_tasks_of_one_class() -> None:
    stream = make_stream((1, 1, 1))
    learner = make_learner("rfe", stream, identity="class-means", epochs=3)
    engine = teach(learner, stream)
    assert engine.record.matrices["cil"][0][0] == 100
    means = learner.identity.rule.get_buffer("means_2")
    data = TaskData(stream.tasks[2].train, stream.pixels, torch.device("cpu"), 4, Key(0))
    learner.eval()
    with torch.no_grad():
        f = torch.cat([learner.network.backbone(batch.x) for batch in data.batches()])
    assert torch.allclose(means[0], f.mean(0), atol=1e-5)


def test_class_means_follow_the_space_that_a_task_is_read_in() -> None:
    class Affine(nn.Sequential):
        feature_dim, nonnegative = 6, False

    stream, backbone = make_stream((2, 1, 2, 2, 1, 2)), Affine(nn.Flatten(), nn.Linear(768, 6))
    learner = make_learner("rfe", stream, backbone=backbone, identity="class-means", stride=3).eval()
    spaces: list[nn.Module] = []
    plain = []  # the images and labels of each task
    for task in stream.tasks:
        index, data = task.info.index, TaskData(task.train, stream.pixels, torch.device("cpu"), 4, Key(0))
        plain.append([torch.cat(parts) for parts in zip(*((b.x, b.y) for b in data.batches()), strict=True)])
        learner.begin_task(task.info)
        with torch.no_grad():
            backbone[1].bias += torch.randn(6)  # a drift that is the same for all images, so the estimate is exact
        learner.end_task(task.info, data)
        spaces.append(copy.deepcopy(backbone))
        for past, (x, y) in enumerate(plain):
            f = spaces[learner.rfe.chain.domain(past)](x)
            expected = torch.stack([f[y == unit].mean(0) for unit in y.unique()])
            assert torch.allclose(learner.identity.rule.get_buffer(f"means_{past}"), expected, atol=1e-5), (index, past)


def test_alpha_zero_leaves_the_teacher_alone_in_stage_one() -> None:
    stream = make_stream()
    learner = after_task("rfe", stream, 1, alpha=0.0)
    learner.rfe.anchor.forward = learner.rfe.anchor.teacher_forward = lambda *_: pytest.fail("the teacher was asked")
    loss = loss_of(phases(learner, stream, 1)["fit"], batch_of(stream, 1))
    assert torch.isfinite(loss)


def warm(learner: Learner[Any], stream: Stream, num_tasks: int) -> Engine:
    """An engine whose learner has learned the first tasks."""
    part = Stream(stream.name, stream.tasks[:num_tasks], stream.pixels, stream.image_shape)
    return teach(learner, part)


def test_stage_two_adds_the_recall_loss() -> None:
    """RFE-P and RFE-B train r on memory too: their step is the data's losses plus the recall loss, nothing less."""
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-b", stream, 2)
    learner.eval()
    batch = batch_of(stream, 2)
    phase = phases(learner, stream, 2)["retrospect"]
    data = sum(phase.validate(with_features(phase.cached, batch)).losses.values())
    recalled = recall_loss(learner, stream, 2, batch)
    assert recalled.item() > 1e-4
    assert torch.allclose(loss_of(phase, batch), data + recalled, atol=1e-6)


def test_stored_targets_in_stage_one() -> None:
    stream = make_stream((2, 3))
    learner = after_task("rfe-b", stream, 1, alpha=0.7, memory_target="stored")
    batch = batch_of(stream, 1)
    student, teacher = copy.deepcopy(learner.network.backbone).train(), copy.deepcopy(learner.network.backbone).eval()
    past = learner.past.memory.sample(8, batch.rng("replay"))
    f = student(torch.cat([batch.x, batch.augment(past, "replayed view")]))
    expected = F.cross_entropy(learner.network.heads[1](f[:8]), batch.y - 2)
    expected = expected + 0.7 * (mse(f[:8], teacher(batch.x)) + mse(f[8:], past.values["feature"]))
    assert torch.allclose(loss_of(phases(learner, stream, 1)["fit"], batch), expected, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_end_to_end_leads_to_the_anchor_on_stream_and_memory(stride: int) -> None:
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-e2e", stream, 2, alpha=0.7, keep="reservoir", stride=stride)
    batch = batch_of(stream, 2)
    with torch.no_grad():
        for parameter in learner.rfe.anchor.parameters():
            parameter.add_(0.05)  # so that the anchor differs from f_{t-1} also at stride 1
    student = copy.deepcopy(learner.network.backbone).train()
    past = learner.past.memory.sample(8, batch.rng("replay"))
    x = torch.cat([batch.x, batch.augment(past, "replayed view")])
    f, last = student(x), learner.rfe.chain.num_hops - 1
    back = learner.rfe.chain.retrospectors[last](f, learner.rfe.chain.auxiliaries[last](x))
    target = learner.rfe.anchor(x)
    expected = F.cross_entropy(learner.network.heads[2](f[:8]), batch.y - 4)
    expected = expected + 0.7 * (mse(back[:8], target[:8]) + mse(back[8:], target[8:]))
    assert torch.allclose(loss_of(phases(learner, stream, 2)["fit"], batch), expected, atol=1e-6)


@pytest.mark.parametrize("statistics", ["batch", "adapting"])
def test_in_stage_two_the_teacher_evaluates(statistics: str) -> None:
    stream = make_stream()
    learner = after_task("rfe", stream, 1, teacher_statistics=statistics)
    learner.eval()
    batch = batch_of(stream, 1)
    f = learner.network.backbone(batch.x)
    r = learner.rfe.chain.retrospectors[0](f, learner.rfe.chain.auxiliaries[0](batch.x))
    expected = mse(r, copy.deepcopy(learner.rfe.anchor.module).eval()(batch.x))
    phase = phases(learner, stream, 1)["retrospect"]
    found = phase.validate(with_features(phase.cached, batch)).losses["retrospector"]
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_second_stage_has_its_own_schedule() -> None:
    stream = make_stream()
    learner = after_task("rfe", stream, 1, retrospect_epochs=7, retrospect_learning_rate=0.03)
    schedule = phases(learner, stream, 1)["retrospect"].schedule
    assert (schedule.epochs, schedule.learning_rate) == (7, 0.03)
    assert phases(learner, stream, 1)["fit"].schedule == learner.setup.schedule
    same = after_task("rfe", stream, 1, epochs=3)
    assert phases(same, stream, 1)["retrospect"].schedule.epochs == 3


def test_rfe_b_offers_each_image_once() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe-b", stream, epochs=3)
    warm(learner, stream, 2)
    assert learner.past.memory.num_offered == sum(len(task.train) for task in stream.tasks)


def test_retrospectors_of_identity_earn_nothing() -> None:
    """What the chain is measured against: replaced by the identity it reads as if it were not there."""

    class Same(nn.Module):
        uses_auxiliary = False

        def forward(self, f: Tensor, h: Tensor | None) -> Tensor:
            return f

    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe", stream, alpha=0.0, epochs=3)
    warm(learner, stream, 3)
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(8))[0])
    with torch.no_grad():
        scores = learner.eval().scores(x)
        assert not torch.allclose(scores.til[:, :4], scores.til_without_chain[:, :4])
        learner.rfe.chain.retrospectors = nn.ModuleList(Same() for _ in range(2))
        scores = learner.eval().scores(x)
    assert torch.equal(scores.til, scores.til_without_chain)


def test_an_old_h_with_norm_and_dropout_stays_asleep() -> None:
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
def test_new_modules_are_placed_beside_the_old_ones(options: dict[str, Any]) -> None:
    rfe, backbone = RFE(feature_dim=6, auxiliary_dim=4, **options), nn.Linear(768, 6).to("meta")
    rfe.begin_task()
    rfe.to("meta")
    rfe.end_task(backbone)
    rfe.begin_task()
    assert {parameter.device.type for parameter in rfe.parameters()} == {"meta"}


def test_the_whole_chain_can_be_tuned_outside_the_harness() -> None:
    rfe = RFE(feature_dim=6, auxiliary_dim=4)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(768, 6))
    for _ in range(3):
        rfe.begin_task()
        rfe.end_task(backbone)
    assert len(rfe.retrospect_parameters(whole_chain=True)) == 2 * 10
    assert all(parameter.requires_grad for parameter in rfe.retrospect_parameters(whole_chain=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 2, "memory_target": "stored"}, "use memory_target=view"),
        ({"end_to_end": True, "alpha": 0.0}, "give it a positive alpha"),
    ],
)
def test_combinations_without_a_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RFEConfig(**options)


def test_small_images_are_refused_before_training() -> None:
    with pytest.raises(UserError, match=r"at least 16 pixels, got \(8, 8\)"):
        make_learner("rfe", make_stream(size=8))


def test_averaging_warns_of_unequal_tasks() -> None:
    learner = make_learner("rfe", make_stream((2, 3)))
    learner.begin_task(make_stream((2, 3)).tasks[0].info)
    with pytest.warns(UserWarning, match="favours tasks of few classes, and task sizes differ"):
        learner.begin_task(make_stream((2, 3)).tasks[1].info)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1)])
def test_class_means_take_one_image_a_class(sizes: tuple[int, ...]) -> None:
    stream = make_stream(sizes, per_class=1)
    learner = make_learner("rfe", stream, identity="class-means")
    with pytest.warns(UserWarning, match="no validation images"):
        teach(learner, stream)
    x = stream.pixels.normalise(stream.tasks[0].train.take(torch.arange(1))[0])
    with torch.no_grad():
        p = learner.eval().scores(x).cil
    assert bool(torch.isfinite(p).all())
    assert p.shape == (1, sum(sizes))


def test_fixed_heads_rank_only_what_is_learned() -> None:
    stream = make_stream((2, 3))
    for identity in ("average", "class-means"):
        learner = make_learner("rfe", stream, fixed_heads=(2, 3), identity=identity)
        warm(learner, stream, 1)
        with torch.no_grad():
            cil = learner.eval().scores(stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(3))[0])).cil
        assert cil.shape == (3, 2)
        if identity == "average":
            assert cil.sum(1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
