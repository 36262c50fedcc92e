"""The chain against a naive loop, with and without skipping, and RFE without the harness."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from recollect.core import RFE, AuxiliaryExtractor, GatedRetrospector, RetrospectorChain


def make_chain(num_tasks: int, stride: int = 1) -> RetrospectorChain:
    chain = RetrospectorChain(lambda: GatedRetrospector(6, 4, 3), lambda: AuxiliaryExtractor(4, 1), stride)
    for _ in range(num_tasks):
        chain.begin_task()
    return chain


def test_rewind_equals_the_recursion() -> None:
    chain = make_chain(4)
    x, f = torch.randn(3, 1, 16, 16), torch.randn(3, 6)
    expected = {3: f}
    for t in (3, 2, 1):  # r_t, h_t are number t-1 of their lists
        expected[t - 1] = chain.retrospectors[t - 1](expected[t], chain.auxiliaries[t - 1](x))
    everything = chain.rewind(x, f)
    for task in range(4):
        assert torch.equal(everything[task], expected[task])
        assert torch.equal(chain.rewind(x, f, to=task), expected[task])


def test_rewind_refuses_a_task_not_learned() -> None:
    with pytest.raises(ValueError, match="task 4 is not among the 4 tasks"):
        make_chain(4).rewind(torch.randn(1, 1, 16, 16), torch.randn(1, 6), to=4)


# After each number of tasks under stride 2 and 3: how many hops, and in whose space each task is read.
@pytest.mark.parametrize(
    ("stride", "num_tasks", "hops", "domains"),
    [
        (1, 1, 0, [0]),
        (1, 4, 3, [0, 1, 2, 3]),
        (2, 2, 1, [0, 1]),
        (2, 3, 1, [0, 2, 2]),
        (2, 4, 2, [0, 2, 2, 3]),
        (2, 5, 2, [0, 2, 2, 4, 4]),
        (3, 6, 2, [0, 3, 3, 3, 5, 5]),
        (3, 7, 2, [0, 3, 3, 3, 6, 6, 6]),
    ],
)
def test_with_a_stride_each_task_is_read_at_the_nearest_later_anchor(
    stride: int, num_tasks: int, hops: int, domains: list[int]
) -> None:
    chain = make_chain(num_tasks, stride)
    assert chain.num_hops == hops
    assert [chain.domain(task) for task in range(num_tasks)] == domains
    x, f = torch.randn(2, 1, 16, 16), torch.randn(2, 6)
    spaces = {num_tasks - 1: f}
    hat = f
    for hop in reversed(range(hops)):
        hat = chain.retrospectors[hop](hat, chain.auxiliaries[hop](x))
        spaces[hop * stride] = hat
    assert all(torch.equal(chain.rewind(x, f)[task], spaces[domain]) for task, domain in enumerate(domains))


def test_a_retrospector_that_starts_between_anchors_is_replaced() -> None:
    chain = make_chain(2, stride=2)
    temporary, h = chain.retrospectors[0], chain.auxiliaries[0]
    chain.begin_task()
    assert chain.retrospectors[0] is not temporary
    assert chain.auxiliaries[0] is h
    permanent = chain.retrospectors[0]
    chain.begin_task()
    assert chain.retrospectors[0] is permanent


@pytest.mark.parametrize(
    ("moves", "spaces", "hops"),
    [
        ([True, False, True, False, False, True], [0, 0, 1, 1, 1, 2], 2),
        ([False, False, True, True], [0, 0, 1, 2], 2),
        ([False, False, False], [0, 0, 0], 0),
    ],
)
def test_a_task_that_does_not_move_the_backbone_needs_no_hop(moves: list[bool], spaces: list[int], hops: int) -> None:
    chain = make_chain(0)
    for task_moves in moves:
        chain.begin_task(moves=task_moves)
    x, f = torch.randn(3, 1, 16, 16), torch.randn(3, 6)
    expected = [f]
    for hop in reversed(range(hops)):
        expected.insert(0, chain.retrospectors[hop](expected[0], chain.auxiliaries[hop](x)))
    assert chain.num_hops == hops
    estimates = chain.rewind(x, f)
    assert len(estimates) == len(moves)
    assert all(torch.equal(estimate, expected[space]) for estimate, space in zip(estimates, spaces, strict=True))


def test_an_auxiliary_that_was_not_prepared_is_trained_with_its_hop() -> None:
    rfe, backbone = RFE(feature_dim=6, auxiliary_dim=4, in_channels=1), nn.Sequential(nn.Flatten(), nn.Linear(256, 6))
    trained = []
    for moves in (False, True, False, True):
        rfe.begin_task(moves=moves)
        parameters = {id(parameter) for parameter in rfe.retrospect_parameters()} if moves else set()
        hop = rfe.chain.num_hops - 1
        trained.append(hop >= 0 and id(next(rfe.chain.auxiliaries[hop].parameters())) in parameters)
        rfe.end_task(backbone)
    assert trained == [False, True, False, False]


def test_the_example_of_the_readme_carries_features_back() -> None:
    """RFE in a loop of one's own: after a second task the chain is nearer to the old features than drift is."""
    generator = torch.Generator().manual_seed(0)
    tasks = [
        (torch.randn(64, 3, 16, 16, generator=generator), torch.randint(0, 2, (64,), generator=generator))
        for _ in range(2)
    ]
    backbone = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    rfe = RFE(feature_dim=64, auxiliary_dim=16, projection_dim=16)
    originals = []
    for x, y in tasks:
        rfe.begin_task()
        head = nn.Linear(64, 2)
        optimiser = torch.optim.Adam([*backbone.parameters(), *head.parameters()], 1e-2)
        backbone.train()
        for _ in range(20):
            f = backbone(x)
            loss = F.cross_entropy(head(f), y) + 0.01 * rfe.drift_loss(x, f)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        backbone.eval()
        optimiser = torch.optim.Adam(rfe.new_parameters(), 1e-2)
        for _ in range(150):
            with torch.no_grad():
                f = backbone(x)
            loss = rfe.distill_loss(x, f) + rfe.retrospect_loss(x, f)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        rfe.end_task(backbone)
        originals.append(backbone(x).detach())
    x = tasks[0][0]
    drifted = (backbone(x) - originals[0]).square().mean()
    rectified = (rfe.rewind(x, backbone(x), to=0) - originals[0]).square().mean()
    assert rectified < 0.7 * drifted
    assert torch.equal(rfe.rewind(x, backbone(x), to=1), backbone(x))


def test_a_retrospector_that_was_not_trained_is_warned_about() -> None:
    rfe, backbone = RFE(feature_dim=12), nn.Sequential(nn.AvgPool2d(16), nn.Flatten())
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        rfe.begin_task()
        rfe.end_task(backbone)
    rfe.begin_task()
    rfe.retrospect_loss(x, backbone(x))
    with pytest.warns(UserWarning, match=r"retrospector of task 3 leaves .* without it 0\); train new_parameters"):
        rfe.end_task(backbone)
    rfe.retrospect_loss(x, backbone(x))  # after the task: of no interest
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rfe.begin_task()
        rfe.end_task(backbone)


def test_the_first_task_has_no_drift_or_retrospect_loss() -> None:
    rfe = RFE(feature_dim=6, auxiliary_dim=4, in_channels=1)
    rfe.begin_task()
    x, f = torch.randn(2, 1, 16, 16), torch.randn(2, 6)
    assert float(rfe.drift_loss(x, f)) == 0
    assert float(rfe.retrospect_loss(x, f)) == 0
    assert rfe.distill_loss(x, f).item() > 0


def test_any_module_with_a_dim_serves_as_auxiliary() -> None:
    class Flat(nn.Module):
        dim = 10

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(256, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.flatten(1))  # type: ignore[no-any-return]

    rfe = RFE(feature_dim=6, in_channels=1, auxiliary=Flat)
    rfe.begin_task()
    with pytest.raises(RuntimeError, match="task 1 has not ended: call end_task"):
        rfe.begin_task()
    rfe.end_task(nn.Flatten())
    rfe.begin_task()
    assert rfe.rewind(torch.randn(2, 1, 16, 16), torch.randn(2, 6), to=0).shape == (2, 6)
    with pytest.raises(ValueError, match="attribute `dim`"):
        RFE(feature_dim=6, auxiliary=lambda: nn.Linear(3, 3))


def test_features_of_another_width_are_refused() -> None:
    rfe = RFE(feature_dim=64)
    rfe.begin_task()
    with pytest.raises(ValueError, match="features have 32 dimensions, RFE was made for feature_dim=64"):
        rfe.drift_loss(torch.randn(2, 3, 16, 16), torch.randn(2, 32))
