"""The losses of RFE's two stages against naive computations."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.support import (
    after_task,
    batch_of,
    loss_of,
    make_stream,
    mse,
    phases,
    recall_loss,
    with_features,
)


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


def test_stage_one_with_alpha_zero_does_not_run_the_teacher() -> None:
    stream = make_stream((2, 3))
    learner = after_task("rfe", stream, 1, alpha=0.0)
    batch = batch_of(stream, 1)
    f = copy.deepcopy(learner.network.backbone).train()(batch.x)
    expected = F.cross_entropy(learner.network.heads[1](f), batch.y - 2)
    learner.rfe.anchor.forward = learner.rfe.anchor.teacher_forward = lambda *_: pytest.fail("the teacher was asked")
    assert torch.allclose(loss_of(phases(learner, stream, 1)["fit"], batch), expected, atol=1e-6)


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


def test_stage_one_compares_samples_with_their_stored_features() -> None:
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
def test_end_to_end_fits_the_anchors_features_on_stream_and_memory(stride: int) -> None:
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
def test_the_teacher_is_in_evaluation_mode_in_stage_two(statistics: str) -> None:
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
