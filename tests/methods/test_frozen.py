"""Methods on frozen features: what a stream of tasks leaves equals one computation in NumPy on all images together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from recollect.engine import Observer
from tests.support import make_learner, make_stream, teach, warm

STREAM = make_stream((2, 1, 3), per_class=12)


def learn(name: str, **options: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The learner after all tasks, features and labels of all training images, test features and its scores of them."""
    learner = make_learner(name, STREAM, **options)
    teach(learner, STREAM)
    learner.eval()
    features, labels, tests = [], [], []
    with torch.no_grad():
        for task in STREAM.tasks:
            images, y = task.train.take(torch.arange(len(task.train)))
            features.append(learner.network.backbone(STREAM.pixels.normalise(images)).double())
            labels.append(y)
            tests.append(task.test.take(torch.arange(len(task.test)))[0])
        x = STREAM.pixels.normalise(torch.cat(tests))
        scores = learner.scores(x)
        assert torch.equal(scores.til, scores.cil)
        return (
            learner,
            torch.cat(features).numpy(),
            torch.cat(labels).numpy(),
            learner.network.backbone(x).double().numpy(),
            scores.cil.numpy(),
        )


def normalise(z: np.ndarray) -> np.ndarray:
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def test_ncm_is_the_cosine_to_class_means() -> None:
    _, z, y, test, scores = learn("ncm")
    means = np.stack([normalise(z)[y == c].mean(0) for c in range(6)])
    np.testing.assert_allclose(scores, normalise(test) @ normalise(means).T, atol=1e-5)


@pytest.mark.parametrize("name", ["slda", "fsa"])
def test_streaming_lda_is_batch_lda_on_all_images(name: str) -> None:
    _, z, y, test, scores = learn(name, shrinkage=0.2)
    means = np.stack([z[y == c].mean(0) for c in range(6)])
    centred = z - means[y]
    covariance = centred.T @ centred / (len(z) - 6)
    d = len(covariance)
    inverse = np.linalg.inv(0.8 * covariance + 0.2 * np.trace(covariance) / d * np.eye(d))
    expected = test @ inverse @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
    scores = scores - scores.mean(1, keepdims=True)  # what is the same for all classes ranks nothing
    expected = expected - expected.mean(1, keepdims=True)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert (scores.argmax(1) == expected.argmax(1)).all()


@pytest.mark.parametrize(("name", "moves"), [("fsa", [True, False, False]), ("slda", [False] * 3)])
def test_fsa_trains_the_backbone_in_the_first_task_only(name: str, moves: list[bool]) -> None:
    learner = make_learner(name, STREAM)
    states, chosen = [_flat(learner)], []
    learner.discriminant.choose = lambda z, labels: chosen.append(set(labels.tolist()))

    class Watch(Observer):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "task":
                states.append(_flat(learner))

    teach(learner, STREAM, observer=Watch())
    assert [not torch.equal(before, after) for before, after in pairwise(states)] == moves
    tasks = [set(task.train.labels.tolist()) for task in STREAM.tasks]
    assert chosen == tasks[sum(moves) :]  # images that were trained on do not choose the shrinkage


def _flat(learner: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in learner.network.backbone.parameters()])


def test_ranpac_is_ridge_regression_on_all_images() -> None:
    learner, z, y, test, scores = learn("ranpac", random_dim=20)
    projection = learner.projection.double().numpy()
    h, onehot = np.maximum(z @ projection, 0), np.eye(6)[y]
    errors = []
    for ridge in 10.0 ** np.arange(-8, 10):
        weight = np.linalg.solve(h.T @ h + ridge * np.eye(20), h.T @ onehot)
        errors.append(np.abs(np.maximum(test @ projection, 0) @ weight - scores).max())
    assert min(errors) < 1e-3  # λ is one of these; which, the next test asks


def test_ranpac_chooses_a_large_ridge_for_labels_without_meaning() -> None:
    learner = make_learner("ranpac", STREAM, random_dim=20)
    generator = torch.Generator().manual_seed(0)
    h, y = torch.randn(60, 20, generator=generator), torch.randint(0, 6, (60,), generator=generator)
    learner.grow(6)
    noise = learner._choose_ridge(h, torch.nn.functional.one_hot(y, 6).float())
    signal = learner._choose_ridge(h, h[:, :6])
    assert noise > 1e2 * signal


@pytest.mark.parametrize("noise", [0.1, 0.5, 3.0])
def test_ranpac_chooses_the_ridge_of_least_error_of_all(noise: float) -> None:
    learner = make_learner("ranpac", STREAM, random_dim=20)
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(60) % 6
    h = torch.eye(6)[y].repeat(1, 4)[:, :20] + noise * torch.randn(60, 20, generator=generator)
    learner.grow(6)
    chosen = learner._choose_ridge(h, torch.eye(6)[y])
    rows, onehot = h.double().numpy(), np.eye(6)[y]
    held = np.arange(60) // 6 % 5 == 4  # every fifth of each class
    ridges = 10.0 ** np.arange(-8, 10)
    gram, sums = rows[~held].T @ rows[~held], rows[~held].T @ onehot[~held]
    errors = [
        np.square(rows[held] @ np.linalg.solve(gram + ridge * np.eye(20), sums) - onehot[held]).mean()
        for ridge in ridges
    ]
    assert errors[int(np.argmin(abs(ridges - chosen)))] == pytest.approx(min(errors), rel=1e-6)


def test_fecam_is_the_distance_under_each_classes_correlations() -> None:
    _, z, y, test, scores = learn("fecam")
    z, test = np.sqrt(z), np.sqrt(test)
    d = z.shape[1]
    expected = []
    for c in range(6):
        own = z[y == c]
        covariance = np.cov(own.T)
        v1 = np.trace(covariance) / d
        v2 = (covariance.sum() - np.trace(covariance)) / (d * (d - 1))
        covariance = covariance + v1 * np.eye(d) + v2 * (1 - np.eye(d))
        deviations = np.sqrt(np.diag(covariance))
        inverse = np.linalg.inv(covariance / np.outer(deviations, deviations))
        away = normalise(test) - normalise(own.mean(0, keepdims=True))
        expected.append(-np.einsum("nd,de,ne->n", away, inverse, away))
    np.testing.assert_allclose(scores, np.stack(expected, axis=1), rtol=2e-3, atol=1e-4)


def ridge(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The affine map from old to new features, and the covariance of its leave-one-out errors, by refitting."""

    def fit(strength: float) -> tuple[np.ndarray, np.ndarray]:
        """Pulled towards "nothing moved"; the intercept is that of all images."""
        z, moved = old - old.mean(0), (new - old) - (new - old).mean(0)
        scale = strength * (np.linalg.svd(z, compute_uv=False) ** 2).mean()
        change = np.linalg.solve(z.T @ z + scale * np.eye(z.shape[1]), z.T @ moved)
        return change, new.mean(0) - old.mean(0) @ (np.eye(z.shape[1]) + change)

    def errors(strength: float) -> np.ndarray:
        z = old - old.mean(0)
        scale = strength * (np.linalg.svd(z, compute_uv=False) ** 2).mean()
        hat = z @ np.linalg.solve(z.T @ z + scale * np.eye(z.shape[1]), z.T) + 1 / len(z)
        change, intercept = fit(strength)
        residual = new - (old + old @ change + intercept)
        return residual / (1 - np.diag(hat))[:, None]

    strengths = [10.0**e for e in range(-6, 7)]
    strength = min(strengths, key=lambda s: float((errors(s) ** 2).mean()))
    change, intercept = fit(strength)
    missed = errors(strength)
    return np.eye(old.shape[1]) + change, intercept, missed.T @ missed / len(old)


def test_ldc_is_batch_lda_on_statistics_carried_along_with_the_features() -> None:
    stream = make_stream((2, 3), per_class=40)
    learner = make_learner("ldc", stream, shrinkage=0.2)
    warm(learner, stream, 1)
    images = [task.train.take(torch.arange(len(task.train))) for task in stream.tasks]
    tests = stream.pixels.normalise(torch.cat([t.test.take(torch.arange(len(t.test)))[0] for t in stream.tasks]))

    def read(x: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(learner.eval().network.backbone(x).double())

    first, second = (stream.pixels.normalise(x) for x, _ in images)
    before, old = read(first), read(second)
    teach(learner, stream, num_learned=1)
    new, query = read(second), read(tests)
    weight, intercept, residual = ridge(old, new)
    y = [np.asarray(labels) for _, labels in images]
    means = np.stack(
        [before[y[0] == c].mean(0) @ weight + intercept for c in (0, 1)] + [new[y[1] == c].mean(0) for c in (2, 3, 4)]
    )
    centred = before - np.stack([before[y[0] == c].mean(0) for c in (0, 1)])[y[0]]
    own = new - means[y[1]]
    scatter = weight.T @ (centred.T @ centred) @ weight + residual * (len(before) - 2) + own.T @ own
    covariance = scatter / (len(before) + len(new) - 5)
    d = len(covariance)
    inverse = np.linalg.inv(0.8 * covariance + 0.2 * np.trace(covariance) / d * np.eye(d))
    expected = query @ inverse @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
    with torch.no_grad():
        scores = np.asarray(learner.scores(tests).cil)
    scores, expected = (part - part.mean(1, keepdims=True) for part in (scores, expected))
    np.testing.assert_allclose(scores, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
    assert (scores.argmax(1) == expected.argmax(1)).mean() > 0.99


@pytest.mark.parametrize("name", ["ncm", "slda", "fecam"])
@pytest.mark.parametrize("sizes", [(6, 1, 1, 2), (1, 1, 1)])
def test_no_class_is_preferred_for_the_size_of_its_task(name: str, sizes: tuple[int, ...]) -> None:
    """Statistics do not depend on how classes are divided into tasks (but for ranpac's ridge, which tasks choose)."""
    stream = make_stream(sizes, per_class=12)
    whole = replace(make_stream((sum(sizes),), per_class=12), pixels=stream.pixels)
    x = stream.pixels.normalise(torch.cat([t.test.take(torch.arange(len(t.test)))[0] for t in stream.tasks]))
    scores = []
    for each in (stream, whole):
        learner = make_learner(name, each, **({"shrinkage": 0.2} if name == "slda" else {}))
        teach(learner, each)
        with torch.no_grad():
            scores.append(learner.eval().scores(x).cil)
    assert torch.equal(scores[0].argmax(1), scores[1].argmax(1))
