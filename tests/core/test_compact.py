"""A trained chain as affine maps: exact where it is affine, near it elsewhere, and read in the same spaces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recollect.core import (
    RFE,
    AffineRetrospector,
    AuxiliaryExtractor,
    GatedRetrospector,
    RetrospectorChain,
    compact,
)


def images_and_features(num: int = 200, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num, 3, 16, 16, generator=generator), torch.randn(num, dim, generator=generator)


def gated_chain(moves: tuple[bool, ...], stride: int = 1) -> RetrospectorChain:
    torch.manual_seed(1)
    chain = RetrospectorChain(lambda: GatedRetrospector(8, 4, 4), lambda: AuxiliaryExtractor(4), stride)
    for move in moves:
        chain.begin_task(moves=move)
    return chain.eval()


def test_a_chain_of_affine_hops_is_recovered() -> None:
    x, f = images_and_features()
    chain = RetrospectorChain(lambda: AffineRetrospector(8), None)
    for _ in range(4):
        chain.begin_task()
    for hop in chain.retrospectors:
        hop.down.copy_(0.3 * torch.randn(8, 8))
        hop.up.copy_(torch.eye(8))
        hop.bias.copy_(torch.randn(8))
    unseen, g = images_and_features(num=20)
    for estimate, expected in zip(compact(chain, x, f).rewind(unseen, g), chain.rewind(unseen, g), strict=True):
        torch.testing.assert_close(estimate, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("moves", "stride"), [((True,) * 5, 1), ((True,) * 6, 2), ((True, False, True, False, True), 1), ((True,), 1)]
)
def test_tasks_are_read_in_the_spaces_that_they_had(moves: tuple[bool, ...], stride: int) -> None:
    x, f = images_and_features()
    chain = gated_chain(moves, stride)
    affine = compact(chain, x, f)
    assert [affine.num_hops_to(task) for task in range(len(moves))] == [
        chain.num_hops_to(task) for task in range(len(moves))
    ]
    for estimate, expected in zip(affine.rewind(x, f), chain.rewind(x, f), strict=True):
        assert (estimate - expected).square().mean() <= 0.5 * (f - expected).square().mean()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_chain_of_any_precision_is_read_in_evaluation_mode(dtype: torch.dtype) -> None:
    x, f = (tensor.to(dtype) for tensor in images_and_features())
    chain = gated_chain((True,) * 3).to(dtype).train()
    for auxiliary in chain.auxiliaries:
        auxiliary.register_module("norm", torch.nn.BatchNorm1d(4).to(dtype))
        auxiliary.register_forward_hook(lambda module, _, output: module.norm(output))
    before = {name: tensor.clone() for name, tensor in chain.state_dict().items()}
    estimate = compact(chain, x, f).rewind(x, f, to=0)
    assert estimate.dtype == dtype
    assert chain.training
    assert all(tensor.equal(before[name]) for name, tensor in chain.state_dict().items())


def test_its_state_loads_into_an_affine_rfe() -> None:
    x, backbone = images_and_features()[0], torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())
    gated, affine = RFE(feature_dim=12, auxiliary_dim=4), RFE(feature_dim=12, form="affine", projection_dim=5)
    for rfe in (gated, affine):
        for _ in range(3):
            rfe.begin_task()
            rfe.end_task(backbone)
    gated.compact(x, backbone(x), rank=5)
    affine.load_state_dict(gated.state_dict())
    assert affine.rewind(x, backbone(x), to=0).equal(gated.rewind(x, backbone(x), to=0))


def test_errors_do_not_add_up() -> None:
    """A hop aims at the trained estimate from the compacted one, not from the trained one."""
    x, f = images_and_features()
    chain = gated_chain((True,) * 9)
    expected = chain.rewind(x, f, to=0)
    affine = compact(chain, x, f)
    careless = compact(chain, x, f)
    for index, hop in enumerate(careless.retrospectors):
        assert isinstance(hop, AffineRetrospector)
        hop.fit(chain.rewind(x, f, to=index + 1), chain.rewind(x, f, to=index))
    errors = [(other.rewind(x, f, to=0) - expected).square().mean() for other in (affine, careless)]
    assert errors[0] < errors[1]


def test_more_tasks_can_be_learned_afterwards() -> None:
    x, f = images_and_features(dim=12)
    backbone = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())
    rfe = RFE(feature_dim=12, auxiliary_dim=4, projection_dim=4)
    for _ in range(2):
        rfe.begin_task()
        rfe.end_task(backbone)
    rfe.compact(x, backbone(x))
    rfe.begin_task()
    assert rfe.new_parameters() == []
    rfe.fit_affine(2 * f, f)
    rfe.end_task(backbone)
    assert len(rfe.rewind(x, f)) == 3
    assert sum(parameter.numel() for parameter in rfe.chain.parameters()) == 0
