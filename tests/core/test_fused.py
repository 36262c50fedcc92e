"""The fused chain says what the plain chain says, for every shape it may take."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.support import make_learner, make_stream, teach
from torch import Tensor, nn

from recollect.core import RFE, AffineRetrospector, AuxiliaryExtractor, GatedRetrospector, fused, fused_heads


def grown(num_tasks: int, **options: Any) -> RFE:
    torch.manual_seed(3)
    rfe = RFE(10, auxiliary_dim=8, projection_dim=6, **options)
    for _ in range(num_tasks):
        rfe.begin_task()
        rfe.end_task(nn.Identity())
    return rfe.double()


OPTIONS = [
    {},
    {"final_relu": True},
    {"bias": False},
    {"pool": "mean"},
    {"stride": 2},
    {"form": "mlp-residual"},
    {"form": "no-aux"},
    {"form": "affine"},
    {"in_channels": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", [(16, 16), (32, 48), (20, 33)], ids=str)
def test_fused_equals_plain_in_double_precision(options: dict[str, Any], size: tuple[int, int]) -> None:
    for num_tasks in (1, 2, 5):
        rfe = grown(num_tasks, **options)
        for batch in (1, 3, 70):  # more than one part
            x = torch.randn(batch, options.get("in_channels", 3), *size, dtype=torch.float64)
            f = torch.randn(batch, 10, dtype=torch.float64)
            found, expected = fused(rfe.chain)(x, f), rfe.rewind(x, f)
            assert len(found) == len(expected) == num_tasks
            for a, b in zip(found, expected, strict=True):
                assert torch.allclose(a, b, rtol=1e-11, atol=1e-12)


def test_channels_last_images_give_the_same_estimates() -> None:
    rfe = grown(3)
    x, f = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.randn(4, 10, dtype=torch.float64)
    read = fused(rfe.chain)
    for a, b in zip(read(x.contiguous(memory_format=torch.channels_last), f), read(x, f), strict=True):
        assert torch.allclose(a, b, rtol=1e-12)


def test_later_training_does_not_change_a_fused_chain() -> None:
    rfe = grown(3)
    x, f = torch.randn(2, 3, 16, 16, dtype=torch.float64), torch.randn(2, 10, dtype=torch.float64)
    read = fused(rfe.chain)
    before = [estimate.clone() for estimate in read(x, f)]
    with torch.no_grad():
        for parameter in rfe.parameters():
            parameter.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(read(x, f), before, strict=True))


def test_half_precision_weights_give_close_estimates() -> None:
    rfe = grown(4).float()
    x, f = torch.randn(5, 3, 16, 16), torch.randn(5, 10)
    for a, b in zip(fused(rfe.chain, torch.bfloat16)(x, f), rfe.rewind(x, f), strict=True):
        assert torch.allclose(a.float(), b, atol=0.05)


class NegatedExtractor(AuxiliaryExtractor):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class NegatedRetrospector(GatedRetrospector):
    def forward(self, f: Tensor, h: Tensor | None = None) -> Tensor:
        return -super().forward(f, h)


@pytest.mark.parametrize("part", ["auxiliary", "retrospector"])
def test_a_subclass_with_its_own_forward_is_not_fused(part: str) -> None:
    rfe = grown(3, auxiliary=(lambda: NegatedExtractor(8)) if part == "auxiliary" else None)
    if part == "retrospector":
        rfe.chain.retrospectors[0].__class__ = NegatedRetrospector
    x, f = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.randn(4, 10, dtype=torch.float64)
    for a, b in zip(fused(rfe.chain)(x, f), rfe.rewind(x, f), strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["rfe", "rfe-b", "rfe-e2e", "rfe-no-aux"])
@pytest.mark.filterwarnings("ignore:identity='class-means' favours tasks of few classes")
@pytest.mark.parametrize("identity", ["average", "class-means"])
def test_a_reader_scores_as_the_learner_does(name: str, identity: str) -> None:
    stream = make_stream((2, 3, 2))
    learner = make_learner(name, stream, epochs=2, identity=identity, fixed_heads=(2, 3, 2))
    untaught = copy.deepcopy(learner)
    teach(learner, stream)
    x = stream.pixels.normalise(stream.tasks[1].test.take(torch.arange(6))[0]).double()
    for each in (learner.double().eval(), untaught.double().eval()):
        with torch.no_grad():
            found, expected = each.reader(torch.float64, without_chain=True)(x), each.scores(x)
        for key in ("til", "cil", "til_without_chain"):
            assert torch.allclose(getattr(found, key), getattr(expected, key), rtol=1e-9, atol=1e-11), key


@pytest.mark.parametrize("stride", [1, 3])
def test_heads_behind_an_affine_chain_are_heads_on_todays_features(stride: int) -> None:
    rfe = grown(6, form="affine", stride=stride)
    for hop in rfe.chain.retrospectors:
        assert isinstance(hop, AffineRetrospector)
        for tensor in hop.buffers():
            tensor.normal_()
    heads = [nn.Linear(10, classes).double() for classes in (2, 1, 3, 2, 2, 4, 2)]  # the last task has not begun
    f = torch.randn(5, 10, dtype=torch.float64)
    folded = fused_heads(rfe.chain, heads)
    assert folded is not None
    estimates = [*rfe.rewind(torch.zeros(5, 3, 16, 16), f), f]
    expected = torch.cat([head(estimate) for head, estimate in zip(heads, estimates, strict=True)], dim=1)
    torch.testing.assert_close(nn.functional.linear(f, *folded), expected, rtol=1e-9, atol=1e-9)


def test_only_a_chain_that_is_all_affine_folds_into_heads() -> None:
    heads = [nn.Linear(10, 2).double() for _ in range(3)]
    assert fused_heads(grown(3).chain, heads) is None
    assert fused_heads(grown(1, form="affine").chain, heads[:1]) is None  # there is no hop yet
