"""Class statistics against batch formulas in NumPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss

from recollect.core import ClassStatistics, Discriminant
from recollect.core.discriminant import PRIORS


def draw(num: int = 200, classes: int = 4, dim: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num) % classes
    mix = torch.randn(dim, dim, generator=generator)
    centres = 3 * torch.randn(classes, dim, generator=generator) + 50  # far from zero, where naive sums cancel
    return centres[labels] + torch.randn(num, dim, generator=generator) @ mix, labels


def collect(z: torch.Tensor, y: torch.Tensor, parts: int = 1) -> ClassStatistics:
    statistics = ClassStatistics(z.shape[1])
    statistics.grow(int(y.max()) + 1)
    for features, labels in zip(z.chunk(parts), y.chunk(parts), strict=True):
        statistics.add(features, labels)
    return statistics


@pytest.mark.parametrize("parts", [1, 7, 200])
def test_streaming_gives_the_means_and_covariance_of_all_data(parts: int) -> None:
    z, y = draw()
    statistics = collect(z, y, parts)
    x = z.double().numpy()
    means = np.stack([x[y == c].mean(0) for c in range(4)])
    centred = x - means[y]
    np.testing.assert_allclose(statistics.means.numpy(), means, rtol=1e-6)
    expected = centred.T @ centred / (len(x) - 4)
    np.testing.assert_allclose(statistics.covariance(0.0).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert statistics.counts.tolist() == [50] * 4


def test_parts_merge_to_the_whole_in_any_order() -> None:
    z, y = draw()
    whole = collect(z, y)
    for order in ([0, 1, 2], [2, 0, 1]):
        merged = ClassStatistics(6)
        merged.grow(4)
        for part in order:
            chosen = slice(part * 70, (part + 1) * 70)
            own = ClassStatistics(6)
            own.grow(4)
            own.add(z[chosen], y[chosen])
            merged.merge(own)
        assert torch.allclose(merged.means, whole.means, rtol=1e-6)
        assert torch.allclose(merged.scatter, whole.scatter, rtol=1e-5, atol=1e-3)


def test_shrinkage_equals_that_of_scikit_learn() -> None:
    z, y = draw(classes=1)
    statistics = collect(z, y)
    oracle = OAS().fit(z.double().numpy())
    scale = (len(z) - 1) / len(z)  # scikit-learn divides by n, and takes it for the number of rows
    ours = statistics.covariance("oas").numpy() * scale
    np.testing.assert_allclose(ours, oracle.covariance_, rtol=2e-2, atol=1e-2)


def test_discriminant_ranks_as_batch_lda_does() -> None:
    z, y = draw()
    weight, bias = collect(z, y, parts=9).discriminant(0.1)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=None, priors=[0.25] * 4)
    covariance = collect(z, y).covariance(0.1).numpy()
    x, means = z.double().numpy(), collect(z, y).means.double().numpy()
    inverse = np.linalg.inv(covariance)
    expected = x @ inverse @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
    expected -= expected.mean(1, keepdims=True)  # the same for all classes
    np.testing.assert_allclose((z @ weight.T + bias).numpy(), expected, rtol=1e-3, atol=1e-2)
    oracle.fit(x, y.numpy())
    unshrunk = collect(z, y).discriminant(0.0)
    ours = (z @ unshrunk[0].T + unshrunk[1]).argmax(1)
    assert (ours.numpy() == oracle.predict(x)).mean() > 0.99


def test_shrinkage_and_temperature_are_chosen_by_the_loss_of_images_that_were_held_out() -> None:
    z, y = draw(60, 3, 20)
    z = z + 10 * torch.randn(60, 20, generator=torch.Generator().manual_seed(1))
    discriminant = Discriminant(20)
    discriminant.grow(3)
    assert (discriminant.shrinkage, discriminant.temperature) == ("oas", 1)  # nothing was held out yet
    discriminant.choose(z, y)
    held = np.arange(60) // 3 % 5 == 4  # every fifth of each class; the classes take turns
    others, x = collect(z[~held], y[~held]), z.double().numpy()
    means, losses = others.means.double().numpy(), []
    unshrunk = others.covariance(0.0).numpy()
    for prior in PRIORS:  # so many images of a spherical class, beside 48 - 3 degrees of freedom
        spherical = np.trace(unshrunk) / 20 * np.eye(20)
        inverse = np.linalg.inv((45 * unshrunk + prior * spherical) / (45 + prior))
        scores = x[held] @ inverse @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
        tempered = [torch.from_numpy(scores / 2**k).softmax(1).numpy() for k in range(8)]
        losses.append([12 * log_loss(y[held], p, labels=[0, 1, 2]) for p in tempered])
    np.testing.assert_allclose(discriminant.prior_losses.numpy(), losses, rtol=1e-4)
    row, column = np.unravel_index(np.argmin(losses), (len(PRIORS), 8))
    assert row > 0
    assert discriminant.shrinkage == 1  # without images the covariance is the prior
    assert discriminant.temperature == 2**column > 1
    discriminant.choose(z, y)
    np.testing.assert_allclose(discriminant.prior_losses.numpy(), 2 * np.array(losses), rtol=1e-4)  # of all tasks
    discriminant.add(z, y)
    assert discriminant.shrinkage == pytest.approx(PRIORS[row] / (PRIORS[row] + 57))
    discriminant.add(z, y)
    assert discriminant.shrinkage == pytest.approx(PRIORS[row] / (PRIORS[row] + 117))  # less with more images
    shrinkage = discriminant.shrinkage
    discriminant.keep(torch.tensor([True, False, True]))
    assert discriminant.shrinkage == shrinkage  # the covariance is still of all images
    discriminant.refresh()
    scores = discriminant(z)
    discriminant.refresh(4.0)
    assert torch.allclose(discriminant(z), scores / 4, atol=1e-4)


@pytest.mark.parametrize("labels", [[0] * 10, [0, 0, 0, 0, 1]], ids=["one class", "fewer than five images"])
def test_images_that_cannot_tell_shrinkages_apart_choose_none(labels: list[int]) -> None:
    discriminant = Discriminant(4)
    discriminant.grow(2)
    discriminant.choose(torch.randn(len(labels), 4), torch.tensor(labels))
    assert discriminant.shrinkage == "oas"


def unequal(dim: int = 60, sizes: tuple[int, ...] = (400, 8)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Classes of different sizes, and their centres."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.zeros(len(sizes), dim)
    centres[1, :4] = 1.0
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return centres[y] + torch.randn(sum(sizes), dim, generator=generator), y, centres


def test_means_of_few_images_are_corrected_for() -> None:
    """In many dimensions the mean of eight images is far from where the next image of its class will be."""
    z, y, centres = unequal()
    statistics = collect(z, y)
    weight, bias = statistics.discriminant(0.1)
    truth = torch.arange(2).repeat_interleave(5000)
    query = centres[truth] + torch.randn(len(truth), 60, generator=torch.Generator().manual_seed(2))
    x, covariance = query.double().numpy(), statistics.covariance(0.0).numpy()
    inverse, means = np.linalg.inv(statistics.covariance(0.1).numpy()), statistics.means.double().numpy()
    distances = [np.einsum("nd,de,ne->n", x - mean, inverse, x - mean) for mean in means]
    errors = [np.trace(inverse @ covariance) / num for num in (400, 8)]  # how much farther a mean is, on average
    gap = (distances[0] - errors[0] / 2) - (distances[1] - errors[1] / 2)
    np.testing.assert_allclose(2 * (query @ (weight[1] - weight[0]) + bias[1] - bias[0]), gap, rtol=1e-3, atol=1e-3)
    share = (query @ weight.T + bias).argmax(1).float().mean()
    assert (distances[1] < distances[0]).mean() + 0.05 < share < 0.5
    statistics.grow(1)
    assert statistics._noise(torch.tensor(60.0)).tolist() == pytest.approx([15 / 400, 15 / 8, 0])  # none if empty


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_the_correction_is_exact_for_every_shrinkage(shrinkage: float) -> None:
    z, y, _ = unequal(dim=20, sizes=(60, 15))
    statistics = collect(z, y)
    _, bias = statistics.discriminant(shrinkage)
    inverse = np.linalg.inv(statistics.covariance(shrinkage).numpy())
    means, covariance = statistics.means.double().numpy(), statistics.covariance(0.0).numpy()
    expected = -0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
    expected += np.trace(inverse @ covariance) / np.array([60, 15]) / 4
    np.testing.assert_allclose((bias[1] - bias[0]).item(), expected[1] - expected[0], rtol=1e-4)


def test_the_correction_takes_part_in_the_choice() -> None:
    z, y, _ = unequal(dim=20, sizes=(60, 15))
    discriminant = Discriminant(20)
    discriminant.grow(2)
    discriminant.choose(z, y)
    held = np.concatenate([np.arange(num) % 5 == 4 for num in (60, 15)])
    others, x = collect(z[~held], y[~held]), z.double().numpy()
    means, unshrunk = others.means.double().numpy(), others.covariance(0.0).numpy()
    losses = []
    for prior in PRIORS:
        inverse = np.linalg.inv((58 * unshrunk + prior * np.trace(unshrunk) / 20 * np.eye(20)) / (58 + prior))
        scores = x[held] @ inverse @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
        scores += np.trace(inverse @ unshrunk) / np.array([48, 12]) / 4
        tempered = [torch.from_numpy(scores / 2**k).softmax(1).numpy() for k in range(8)]
        losses.append([held.sum() * log_loss(y[held], p, labels=[0, 1]) for p in tempered])
    np.testing.assert_allclose(discriminant.prior_losses.numpy(), losses, rtol=1e-4)


def test_draws_have_the_mean_and_covariance_of_their_class() -> None:
    z, y = draw(num=400)
    discriminant = Discriminant(z.shape[1], shrinkage=0.1, num_components=2)
    discriminant.grow(4)
    discriminant.add(z, y)
    means, deviations = discriminant.draw(torch.full((40_000,), 2), torch.Generator().manual_seed(1), spread=0.5)
    torch.testing.assert_close(means, discriminant.statistics.means[2].expand_as(means))
    own = discriminant.statistics.components[2].double()
    expected = discriminant.statistics.covariance(0.1) + 0.5 * own.T @ own
    assert deviations.mean(0).abs().max() < 0.05 * expected.diagonal().max() ** 0.5
    torch.testing.assert_close(torch.cov(deviations.T).double(), expected, rtol=0.05, atol=0.05 * float(expected.max()))


def test_push_gives_the_statistics_of_mapped_features() -> None:
    z, y = draw()
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(6, 6, generator=generator), torch.randn(6, generator=generator)
    noise = torch.randn(len(z), 6, generator=generator)
    for c in range(4):
        noise[y == c] -= noise[y == c].mean(0)
    pushed, mapped = collect(z, y), collect(z @ weight.T + bias, y)
    pushed.push(weight, bias)
    assert torch.allclose(pushed.means, mapped.means, rtol=1e-4, atol=1e-3)
    assert torch.allclose(pushed.covariance(0.0), mapped.covariance(0.0), rtol=1e-3, atol=1e-2)
    residual = torch.eye(6) * 0.5
    pushed.push(torch.eye(6), torch.zeros(6), residual)
    assert torch.allclose(pushed.covariance(0.0), mapped.covariance(0.0) + residual, rtol=1e-3, atol=1e-2)


def test_classes_of_one_image_are_recognised() -> None:
    statistics = ClassStatistics(3)
    statistics.grow(2)
    statistics.add(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1]))
    weight, bias = statistics.discriminant()
    scores = statistics.means @ weight.T + bias
    assert scores.argmax(1).tolist() == [0, 1]
    assert bool(torch.isfinite(scores).all())


def test_growing_keeps_existing_statistics() -> None:
    z, y = draw()
    statistics = collect(z, y)
    before = statistics.covariance(0.0)
    statistics.grow(3)
    assert statistics.num_classes == 7
    assert torch.equal(statistics.covariance(0.0), before)
    assert statistics.counts.tolist() == [50, 50, 50, 50, 0, 0, 0]


def test_dropping_classes_keeps_the_covariance_and_gives_it_less_weight() -> None:
    z, y = draw()
    statistics = collect(z, y)
    covariance, means = statistics.covariance(0.0), statistics.means.clone()
    statistics.keep(torch.tensor([True, False, True, False]))
    assert torch.equal(statistics.means, means[[0, 2]])
    assert statistics.counts.tolist() == [50, 50]
    assert torch.allclose(statistics.covariance(0.0), covariance, rtol=1e-5)
    other = collect(3 * z[y < 2], y[y < 2])
    merged = (98 * covariance + other.degrees_of_freedom * other.covariance(0.0)) / (98 + other.degrees_of_freedom)
    statistics.grow(other.num_classes)
    statistics.merge(other, first_class=2)
    assert torch.allclose(statistics.covariance(0.0), merged, rtol=1e-4, atol=1e-4)
    statistics.keep(torch.arange(statistics.num_classes) == 0)
    assert torch.allclose(statistics.covariance(0.0), merged, rtol=1e-4, atol=1e-4)
