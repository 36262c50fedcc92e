"""Components of classes against full covariance matrices in NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.metrics import log_loss

from recollect.core import ClassStatistics, Discriminant
from recollect.core.components import ROWS, principal
from recollect.core.discriminant import PRIORS, SPREADS

DIM, CLASSES, COMPONENTS = 6, 3, 2


def draw(num: int = 120, offset: float = 20.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes whose means hardly differ, and which vary in different directions."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num) % CLASSES
    noise = torch.randn(num, DIM, generator=generator)
    noise[torch.arange(num), 2 * labels] *= 6.0
    return noise + 0.5 * labels[:, None] + offset, labels


def statistics_of(z: torch.Tensor, y: torch.Tensor, parts: int = 1, components: int = COMPONENTS) -> ClassStatistics:
    statistics = ClassStatistics(DIM, components)
    statistics.grow(CLASSES)
    for features, labels in zip(z.chunk(parts), y.chunk(parts), strict=True):
        statistics.add(features, labels)
    return statistics


def chosen(spread: int, prior: int = 0, temperature: int = 0) -> Discriminant:
    """A discriminant whose held-out images chose these."""
    discriminant = Discriminant(DIM, num_components=COMPONENTS)
    discriminant.grow(CLASSES)
    discriminant.prior_losses.fill_(1.0)[spread * len(PRIORS) + prior, temperature] = 0.5
    return discriminant


def density(statistics: ClassStatistics, x: np.ndarray, covariance: np.ndarray, spread: float) -> np.ndarray:
    """Log-densities of every class, with its covariance written out."""
    rows, means = statistics.components.double().numpy(), statistics.means.double().numpy()
    own = [multivariate_normal(m, covariance + spread * u.T @ u) for m, u in zip(means, rows, strict=True)]
    return np.stack([gaussian.logpdf(x) for gaussian in own], axis=1)


def test_components_are_those_of_scikit_learn() -> None:
    z, y = draw()
    found = statistics_of(z, y).components
    for own in range(CLASSES):
        oracle = PCA(COMPONENTS).fit(z[y == own].double().numpy())
        expected = oracle.components_ * np.sqrt(oracle.explained_variance_)[:, None]
        signs = np.sign((expected * found[own].numpy()).sum(1, keepdims=True))
        np.testing.assert_allclose(found[own].numpy() * signs, expected, rtol=1e-4, atol=1e-4)


def test_parts_give_nearly_the_components_of_all_images() -> None:
    z, y = draw(600)
    whole = statistics_of(z, y).components
    for statistics in (statistics_of(z, y, parts=5), statistics_of(z[:300], y[:300])):
        if int(statistics.counts.sum()) < len(z):
            statistics.merge(statistics_of(z[300:], y[300:]))
        alike = torch.nn.functional.cosine_similarity(statistics.components[:, 0], whole[:, 0], dim=1).abs()
        assert alike.min() > 0.999
        assert torch.allclose(statistics.components[:, 0].norm(dim=1), whole[:, 0].norm(dim=1), rtol=0.01)


def test_more_rows_than_are_computed_at_a_time() -> None:
    rows = torch.randn(3 * ROWS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    found = principal(rows, 3)  # as many as there are dimensions, so nothing is lost
    np.testing.assert_allclose(found.T @ found, rows.T @ rows, rtol=1e-9)
    assert principal(rows[:0], 2).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(("num", "stored"), [(9, 0), (10, 1), (19, 1), (20, 2), (90, 2)])
def test_a_component_takes_ten_images(num: int, stored: int) -> None:
    statistics = ClassStatistics(DIM, COMPONENTS)
    statistics.grow(1)
    statistics.add(torch.randn(num, DIM), torch.zeros(num, dtype=torch.long))
    assert int((statistics.components[0].norm(dim=1) > 0).sum()) == stored


def test_views_of_an_image_do_not_count_as_images() -> None:
    z, y = draw(90)
    views = torch.cat([z + 0.01 * torch.randn(z.shape, generator=torch.Generator().manual_seed(k)) for k in range(4)])
    discriminant, once = (Discriminant(DIM, num_components=COMPONENTS) for _ in range(2))
    for each, features, num in ((discriminant, views, 4), (once, z, 1)):
        each.grow(CLASSES)
        each.add(features, y.repeat(num), views=num)
    lengths, expected = (each.statistics.components.norm(dim=2) for each in (discriminant, once))
    assert torch.allclose(lengths, expected, rtol=0.05)
    few = Discriminant(DIM, num_components=COMPONENTS)
    few.grow(1)
    few.add(views[:40], torch.zeros(40, dtype=torch.long), views=4)
    assert int((few.statistics.components[0].norm(dim=1) > 0).sum()) == 1  # of ten images


def test_images_of_a_class_may_come_in_any_order() -> None:
    z, y = draw(3 * ROWS * 4)
    order = y.argsort(stable=True)
    for found, expected in zip(
        statistics_of(z, y).components, statistics_of(z[order], y[order]).components, strict=True
    ):
        assert torch.allclose(found.T @ found, expected.T @ expected, rtol=1e-3, atol=1e-2)


def test_statistics_without_classes_merge_into_others() -> None:
    z, y = draw()
    statistics = statistics_of(z, y)
    before = statistics.components.clone()
    statistics.merge(ClassStatistics(DIM, COMPONENTS))
    assert torch.equal(statistics.components, before)


@pytest.mark.parametrize("spread", [1, 3])
def test_scores_are_log_densities(spread: int) -> None:
    z, y = draw()
    discriminant = chosen(spread, prior=2, temperature=1)
    discriminant.add(z, y)
    assert (discriminant.spread, discriminant.temperature) == (SPREADS[spread], 2)
    discriminant.refresh(discriminant.temperature)
    statistics = discriminant.statistics
    covariance = statistics.covariance(discriminant.shrinkage).numpy()
    expected = density(statistics, z.double().numpy(), covariance, SPREADS[spread]) / 2
    found = discriminant(z).numpy()
    np.testing.assert_allclose(
        found - found.mean(1, keepdims=True), expected - expected.mean(1, keepdims=True), rtol=1e-3, atol=1e-3
    )


def test_held_out_images_choose_how_much_components_count() -> None:
    z, y = draw()
    discriminant = Discriminant(DIM, num_components=COMPONENTS)
    discriminant.grow(CLASSES)
    assert discriminant.spread == 0  # nothing was held out yet
    discriminant.choose(z, y)
    held = np.arange(len(z)) // CLASSES % 5 == 4
    others = statistics_of(z[~held], y[~held])
    unshrunk, num = others.covariance(0.0).numpy(), 96 - CLASSES
    losses = np.zeros((len(SPREADS), len(PRIORS), 8))
    for row, spread in enumerate(SPREADS):
        for column, prior in enumerate(PRIORS):
            spherical = np.trace(unshrunk) / DIM * np.eye(DIM)
            covariance = (num * unshrunk + prior * spherical) / (num + prior)
            scores = torch.from_numpy(density(others, z[held].double().numpy(), covariance, spread))
            tempered = [(scores / 2**k).softmax(1).numpy() for k in range(8)]
            losses[row, column] = [held.sum() * log_loss(y[held], p, labels=[0, 1, 2]) for p in tempered]
    np.testing.assert_allclose(discriminant.prior_losses.numpy(), losses.reshape(-1, 8), rtol=1e-3)
    assert discriminant.spread == SPREADS[int(losses.min((1, 2)).argmin())] > 0
    discriminant.add(z, y)
    plain = Discriminant(DIM)
    plain.grow(CLASSES)
    plain.choose(z, y)
    plain.add(z, y)
    for each in (discriminant, plain):
        each.refresh()
    right, without = ((each(z).argmax(1) == y).float().mean() for each in (discriminant, plain))
    assert right > without + 0.2  # the means alone tell little


def test_components_follow_a_space_that_moves() -> None:
    z, y = draw()
    turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(1))).Q
    moved = statistics_of(z, y)
    moved.push(turn, torch.ones(DIM))
    expected = statistics_of(z @ turn.T + 1, y)
    for found, own in zip(moved.components, expected.components, strict=True):
        assert torch.allclose(found.T @ found, own.T @ own, rtol=1e-3, atol=1e-2)


def test_a_dropped_class_takes_its_components_with_it() -> None:
    z, y = draw()
    discriminant = chosen(2)
    discriminant.add(z, y)
    discriminant.refresh()
    before, rows = discriminant(z), discriminant.statistics.components
    discriminant.keep(torch.tensor([True, False, True]))
    assert torch.equal(discriminant.statistics.components, rows[[0, 2]])
    discriminant.refresh()
    after = discriminant(z)
    difference = before[:, 0] - before[:, 2]
    assert torch.allclose(after[:, 0] - after[:, 1], difference, rtol=1e-3, atol=1e-2)
