"""The pieces of the paper against naive loops and the published parameter counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from recollect.core import (
    AffineRetrospector,
    AuxiliaryExtractor,
    Averaged,
    Frozen,
    GatedRetrospector,
    Lesson,
    MLPRetrospector,
    Reading,
    average,
    average_weights,
    feature_estimation,
)
from recollect.core.identity import ClassMeans


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for m in modules for p in m.parameters())


def test_feature_estimation_is_the_mean_over_batch_and_dimension() -> None:
    s, f = torch.randn(5, 7), torch.randn(5, 7)
    total = 0.0
    for b in range(5):
        for d in range(7):
            total += (float(s[b, d]) - float(f[b, d])) ** 2
    assert float(feature_estimation(s, f)) == pytest.approx(total / 35, rel=1e-5)


def test_no_gradient_reaches_the_target() -> None:
    s, f = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    feature_estimation(s, f).backward()
    assert s.grad is not None
    assert torch.allclose(s.grad, 2 * (s - f).detach() / 12)
    assert f.grad is None


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (lambda: [AuxiliaryExtractor()], 75_648),
        (lambda: [GatedRetrospector(512)], 280_320),
        (lambda: [GatedRetrospector(512), AuxiliaryExtractor()], 355_968),
        (lambda: [MLPRetrospector(512), AuxiliaryExtractor()], 666_496),
        (lambda: [MLPRetrospector(512, residual=True), AuxiliaryExtractor()], 666_496),
        (lambda: [GatedRetrospector(512, bias=False), AuxiliaryExtractor()], 354_176),
        (lambda: [MLPRetrospector(512, bias=False), AuxiliaryExtractor()], 665_472),
    ],
)
def test_parameter_counts_equal_the_published_ones(modules, expected: int) -> None:
    assert count(*modules()) == expected


@pytest.mark.parametrize(("size", "channels"), [(16, 3), (17, 1), (32, 3), (50, 2), (224, 3)])
def test_auxiliary_takes_any_size_from_16_and_any_channels(size: int, channels: int) -> None:
    assert AuxiliaryExtractor(8, channels)(torch.randn(2, channels, size, size)).shape == (2, 8)


def test_auxiliary_refuses_smaller_images() -> None:
    with pytest.raises(ValueError, match="at least 16 pixels"):
        AuxiliaryExtractor(8)(torch.randn(1, 3, 15, 15))


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_auxiliary_equals_loops(pool: str) -> None:
    h = AuxiliaryExtractor(4, 1, pool).double()  # type: ignore[arg-type]
    x = torch.randn(1, 1, 32, 32, dtype=torch.float64)
    a = x[0].detach().numpy()
    reduce = np.max if pool == "max" else np.mean
    a = np.array(
        [[[reduce(a[c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]) for j in range(16)] for i in range(16)] for c in range(1)]
    )
    for conv in (h.layers[0], h.layers[3]):
        a = _pool(np.maximum(_conv(a, conv), 0))
    assert np.allclose(h(x)[0].detach().numpy(), a.reshape(-1))


def _conv(a: np.ndarray, conv: nn.Module) -> np.ndarray:
    weight, bias = conv.weight.detach().numpy(), conv.bias.detach().numpy()  # type: ignore[union-attr, operator]
    padded = np.pad(a, ((0, 0), (1, 1), (1, 1)))
    size = a.shape[1] // 2
    out = np.zeros((len(weight), size, size))
    for o in range(len(weight)):
        for i in range(size):
            for j in range(size):
                out[o, i, j] = (padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] * weight[o]).sum() + bias[o]
    return out


def _pool(a: np.ndarray) -> np.ndarray:
    c, n, _ = a.shape
    return a.reshape(c, n // 2, 2, n // 2, 2).max((2, 4))


def _linear(layer: nn.Linear, v: list[float]) -> list[float]:
    w, b = layer.weight.tolist(), layer.bias.tolist()
    return [sum(wi * vi for wi, vi in zip(row, v, strict=True)) + bi for row, bi in zip(w, b, strict=True)]


@pytest.mark.parametrize("final_relu", [False, True])
def test_gated_retrospector_equals_loops(final_relu: bool) -> None:
    r = GatedRetrospector(6, 4, 3, final_relu=final_relu).double()
    f, h = torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    found = r(f, h)
    for b in range(2):
        fv, hv = f[b].tolist(), h[b].tolist()
        q = [x * y for x, y in zip(_linear(r.project_f, fv), _linear(r.project_h, hv), strict=True)]
        gate_f = [1 / (1 + math.exp(-v)) for v in _linear(r.gate_f, q)]
        gate_h = [1 / (1 + math.exp(-v)) for v in _linear(r.gate_h, q)]
        expanded = _linear(r.expand_h, hv)
        expected = [gate_f[d] * fv[d] + gate_h[d] * expanded[d] for d in range(6)]
        if final_relu:
            expected = [max(v, 0.0) for v in expected]
        assert found[b].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("residual", "auxiliary_dim"), [(False, 4), (True, 4), (False, 0)])
def test_mlp_retrospectors_equal_loops(residual: bool, auxiliary_dim: int) -> None:
    r = MLPRetrospector(6, auxiliary_dim, residual=residual).double()
    f = torch.randn(2, 6, dtype=torch.float64)
    h = torch.randn(2, 4, dtype=torch.float64) if auxiliary_dim else None
    found = r(f, h)
    for b in range(2):
        given = f[b].tolist() + (h[b].tolist() if h is not None else [])
        hidden = [max(v, 0.0) for v in _linear(r.layers[0], given)]  # type: ignore[arg-type]
        expected = _linear(r.layers[2], hidden)  # type: ignore[arg-type]
        if residual:
            expected = [e + v for e, v in zip(expected, f[b].tolist(), strict=True)]
        assert found[b].tolist() == pytest.approx(expected, abs=1e-12)


def norm_net() -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
    net[1].running_mean.uniform_()  # type: ignore[union-attr, operator]
    return net


def test_affine_retrospector_is_ridge_regression_cut_to_the_directions_of_largest_change() -> None:
    rng = np.random.default_rng(0)
    f = rng.normal(size=(200, 6)) + 3
    change = rng.normal(size=(6, 6)) @ np.diag([3, 2, 1, 0.1, 0.1, 0.1]) @ rng.normal(size=(6, 6))
    target = f + f @ change + rng.normal(size=6)
    features, targets = torch.from_numpy(f).float(), torch.from_numpy(target).float()
    changes = target - f
    centred = changes - changes.mean(0)
    for rank in (6, 2):
        r = AffineRetrospector(6, rank)
        assert torch.equal(r(features), features)  # the identity, before
        r.fit(features, targets)
        *_, directions = np.linalg.svd(centred)  # without noise the ridge is next to nothing
        kept = directions[:rank].T @ directions[:rank]
        expected = f + changes.mean(0) + centred @ kept
        np.testing.assert_allclose(r(features).numpy(), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_frozen_ignores_train_and_never_changes() -> None:
    net = norm_net()
    teacher = Frozen(net)
    parent = nn.ModuleList([teacher])
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    parent.train()
    x = torch.randn(8, 3, 8, 8)
    assert not any(m.training for m in teacher.modules())
    assert torch.equal(teacher(x), net.eval()(x))
    assert not any(p.requires_grad for p in teacher.parameters())
    net.train()(x).sum().backward()
    torch.optim.SGD(net.parameters(), 1.0).step()
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())


@pytest.mark.parametrize("statistics", ["frozen", "batch", "adapting"])
def test_teacher_statistics_follow_the_stated_policy(statistics: str) -> None:
    net = norm_net()
    teacher = Frozen(net, statistics)  # type: ignore[arg-type]
    nn.ModuleList([teacher]).train()
    x = torch.randn(8, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    found = teacher.teacher_forward(x)
    a = net[0](x)
    if statistics == "frozen":
        mean, variance = net[1].running_mean, net[1].running_var
    else:
        mean, variance = a.mean((0, 2, 3)), a.var((0, 2, 3), correction=0)
    expected = torch.relu((a - mean[:, None, None]) / torch.sqrt(variance[:, None, None] + 1e-5)).flatten(1)  # type: ignore[index]
    assert torch.allclose(found, expected, atol=1e-5)
    after = teacher.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    if statistics == "adapting":
        assert moved == {"module.1.running_mean", "module.1.running_var", "module.1.num_batches_tracked"}
        follow = 0.9 * before["module.1.running_mean"] + 0.1 * a.mean((0, 2, 3))
        assert torch.allclose(after["module.1.running_mean"], follow, atol=1e-6)
    else:
        assert not moved
    assert not any(m.training for m in teacher.modules())


def test_averaged_warms_up_and_includes_buffers() -> None:
    net = norm_net()
    ema = Averaged(net, decay=0.7)
    weight, mean = net[0].weight.detach().clone(), net[1].running_mean.clone()  # type: ignore[union-attr, operator]
    for step in range(1, 6):
        with torch.no_grad():
            net[0].weight.add_(step)  # type: ignore[union-attr, operator]
        net.train()(torch.randn(4, 3, 8, 8))
        ema.update(net)
        decay = min(1 - 1 / (step + 1), 0.7)
        weight = decay * weight + (1 - decay) * net[0].weight.detach()  # type: ignore[operator]
        mean = decay * mean + (1 - decay) * net[1].running_mean  # type: ignore[operator]
    assert torch.allclose(ema.module[0].weight, weight, atol=1e-5)  # type: ignore[index]
    assert torch.allclose(ema.module[1].running_mean, mean, atol=1e-5)  # type: ignore[index]
    assert int(ema.module[1].num_batches_tracked) == 5  # type: ignore[index]
    assert not ema.train().module.training


def test_warm_up_of_an_average_counts_its_moves_and_not_the_steps() -> None:
    net = norm_net()
    rare, often = Averaged(net, decay=0.99), Averaged(net, decay=0.99)
    for step in range(40):
        with torch.no_grad():
            net[0].weight.fill_(step // 10)  # type: ignore[union-attr, operator]
        rare.update(net, move=step % 10 == 9)
        if step % 10 == 9:
            often.update(net)
    assert int(rare.moves) == 4
    assert torch.equal(rare.module[0].weight, often.module[0].weight)  # type: ignore[index]


def test_average_is_the_concatenated_softmaxes_over_n() -> None:
    logits = [torch.randn(4, 2), torch.randn(4, 3), torch.randn(4, 1)]
    found = average(logits)
    for b in range(4):
        row = []
        for task in logits:
            total = sum(math.exp(v) for v in task[b].tolist())
            row += [math.exp(v) / total / 3 for v in task[b].tolist()]
        assert found[b].tolist() == pytest.approx(row, rel=1e-5)


def test_class_means_equal_loops_and_rank_tasks_of_one_class() -> None:
    means = ClassMeans(3)
    spaces = []
    for task, classes in enumerate((1, 2)):
        means.grow(classes)
        labels = torch.arange(classes).repeat_interleave(20)
        features = torch.randn(20 * classes, 3) + torch.eye(3)[task + labels] * 6
        means.learn(Lesson(labels, Reading(features, [features])))
        spaces.append((features, labels, classes))
    query, logits = [torch.randn(5, 3), torch.randn(5, 3) + 6], [torch.randn(5, 1), torch.randn(5, 2)]
    found = means.evidence(Reading(query[-1], query), logits)
    for b in range(5):
        column = 0
        for (features, labels, classes), q, z in zip(spaces, query, logits, strict=True):
            total = sum(math.exp(float(each)) for each in z[b])
            for c in range(classes):
                centre = features[labels == c].mean(0)
                cosine = float(q[b] @ centre) / float(q[b].norm() * centre.norm())
                expected = math.log(math.exp(float(z[b, c])) / total) + cosine / 0.2
                assert float(found[b, column]) == pytest.approx(expected, abs=1e-4)
                column += 1
    first = [spaces[0][0][:5], spaces[0][0][:5]]  # images of the first task look the same in the second's space
    assert (means.evidence(Reading(first[-1], first), [torch.zeros(5, 1), torch.zeros(5, 2)]).argmax(1) == 0).all()


def test_class_means_ignore_the_length_of_an_estimate() -> None:
    means = ClassMeans(4)
    for _ in range(2):
        means.grow(2)
        features = torch.randn(8, 4)
        means.learn(Lesson(torch.arange(8) % 2, Reading(features, [features])))
    f, logits = torch.randn(3, 4), [torch.zeros(3, 2), torch.zeros(3, 2)]
    whole, shrunk = (means.evidence(Reading(f, estimates), logits) for estimates in ([f, f], [0.3 * f, f]))
    assert torch.allclose(whole, shrunk, atol=1e-5)


def test_weights_are_averaged_and_what_is_equal_stays_as_it_is() -> None:
    module, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    for part, value in ((module, 4.0), (other, 0.0)):
        part.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        part.register_buffer("phase", torch.full((2,), value * 1j))
        nn.init.constant_(part.weight, value)
        part.running_mean.fill_(value)
        part.num_batches_tracked.fill_(int(value))
    average_weights(module, other, share=0.25)
    assert module.weight.tolist() == module.running_mean.tolist() == [1.0, 1.0]
    assert module.phase.tolist() == [1j, 1j]
    assert module.mask.tolist() == [0.0, float("-inf")]
    assert module.num_batches_tracked.item() == 4
    assert other.weight.tolist() == [0.0, 0.0]
