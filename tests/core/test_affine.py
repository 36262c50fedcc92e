"""The affine map between feature spaces against closed forms, and its leave-one-out errors against leaving one out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.core import fit_affine
from recollect.core.affine import RIDGES


def draw(num: int, dim: int = 5, noise: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num)
    old = torch.randn(num, dim, generator=generator) + 3
    weight, bias = torch.randn(dim, dim, generator=generator), torch.randn(dim, generator=generator)
    return old, old @ weight.T + bias + noise * torch.randn(num, dim, generator=generator), weight, bias


def test_an_affine_drift_is_recovered() -> None:
    old, new, weight, bias = draw(200)
    moved = fit_affine(old, new)
    assert torch.allclose(moved.weight.float(), weight, atol=1e-3)
    assert torch.allclose(moved.bias.float(), bias, atol=1e-2)
    assert moved.residual.abs().max() < 1e-3


def test_equal_features_give_the_identity() -> None:
    old = draw(30)[0]
    moved = fit_affine(old, old)
    assert torch.equal(moved.weight, torch.eye(5, dtype=torch.float64))
    assert moved.residual.abs().max() == 0


def test_noise_gives_nearly_the_identity_and_stays_in_the_residual() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(40, 30, generator=generator)
    new = old + 0.5 * torch.randn(40, 30, generator=generator)
    moved = fit_affine(old, new)
    assert (moved.weight - torch.eye(30)).abs().max() < 0.1
    assert moved.residual.diagonal().mean() == pytest.approx(0.25, rel=0.3)


@pytest.mark.parametrize("views", [1, 3])
def test_residual_is_measured_on_held_out_images_with_all_their_views(views: int) -> None:
    old, new, _, _ = draw(24, dim=4, noise=0.3)
    image = np.arange(24) % (24 // views)
    z, moved = old.double().numpy(), (new - old).double().numpy()
    errors = {}
    for ridge in RIDGES:
        missed = []
        centred_all = z - z.mean(0)
        scale = (np.linalg.svd(centred_all, compute_uv=False) ** 2).mean()
        for row in range(len(z)):
            rest = image != image[row]
            # the centre is a free parameter of the fit, so that it is left out too
            design = np.hstack([z[rest] - z.mean(0), np.ones((rest.sum(), 1))])
            penalty = np.diag([ridge * scale] * 4 + [0.0])
            solution = np.linalg.solve(design.T @ design + penalty, design.T @ moved[rest])
            missed.append(moved[row] - np.append(z[row] - z.mean(0), 1) @ solution)
        errors[ridge] = np.stack(missed)
    best = min(errors.values(), key=lambda each: (each**2).mean())
    expected = best.T @ best / len(z)
    tolerance = 1e-4 if views == 1 else 5e-3  # several views are kept from deciding alone by adding to the diagonal
    found = fit_affine(old, new, views).residual.numpy()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * expected.max())


def test_directions_without_images_are_unchanged() -> None:
    """Of fewer images than dimensions: their mean is mapped exactly, and what is orthogonal to them stays."""
    old, new, _, _ = draw(4, dim=20)
    moved = fit_affine(old, new)
    assert torch.allclose((moved.weight @ old.double().mean(0) + moved.bias).float(), new.mean(0), atol=1e-4)
    spanned = torch.linalg.svd((old - old.mean(0)).double()).Vh[:3]
    other = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other -= spanned.T @ (spanned @ other)
    assert torch.allclose(moved.weight @ other, other, atol=1e-5)
    assert bool(torch.isfinite(moved.residual).all())


def test_a_single_image_is_mapped_to_its_new_features() -> None:
    moved = fit_affine(torch.ones(1, 3), torch.full((1, 3), 2.0))
    assert torch.allclose(
        moved.weight @ torch.ones(3, dtype=torch.float64) + moved.bias, torch.full((3,), 2.0).double()
    )


def test_the_ridge_of_many_features_is_chosen_by_some_of_them() -> None:
    """All features move alike, so any of them choose the ridge that all would choose."""
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(400, 300, generator=generator)
    new = old + 0.1 * old.roll(1, dims=1) + 0.1 * torch.randn(400, 300, generator=generator)
    found = fit_affine(old, new)
    z, moved = (rows.double() - rows.double().mean(0) for rows in (old, new - old))
    hats, errors = {}, {}
    for ridge in RIDGES:
        penalty = ridge * torch.linalg.svdvals(z).square().mean() * torch.eye(300, dtype=z.dtype)
        hats[ridge] = z @ torch.linalg.solve(z.T @ z + penalty, z.T)
        left = (1 - hats[ridge].diagonal() - 1 / 400).clamp(min=1e-3)
        errors[ridge] = float(((moved - hats[ridge] @ moved) / left[:, None]).square().mean())
    expected = z + hats[min(errors, key=lambda ridge: errors[ridge])] @ moved
    carried = old.double() @ found.weight.T + found.bias
    assert torch.allclose(carried - carried.mean(0), expected - expected.mean(0), atol=1e-5)
