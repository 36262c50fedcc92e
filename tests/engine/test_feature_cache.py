"""Cached outputs of frozen functions equal those computed again on the views that are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support import make_learner, make_stream
from torch import Tensor, nn

from recollect.engine import Observer, Runtime
from recollect.engine.feature_cache import FeatureCache, num_views_that_fit
from recollect.engine.fit import Fit
from recollect.engine.training import Training
from recollect.methods import CachedFunctions, Update
from recollect.rng import Key
from recollect.streams import Batch

HERE = torch.device("cpu")


def functions() -> dict[str, nn.Module]:
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 5))
    return {"now": nn.Sequential(*layers).double(), "then": nn.Sequential(nn.Flatten(), nn.Linear(768, 2)).double()}


def cached(views: int, max_bytes: int = 1 << 20) -> CachedFunctions:
    doubled = {name: (lambda x, m=module: m(x.double())) for name, module in functions().items()}
    return CachedFunctions(doubled, views, max_bytes)


@pytest.mark.parametrize("plain", [False, True])
def test_cached_outputs_equal_the_functions_of_the_view_shown(plain: bool) -> None:
    stream = make_stream((3, 2), per_class=20)
    split = stream.tasks[0].train
    views = FeatureCache(split, stream.pixels, cached(3), Key(4), 3, HERE, plain=plain)
    assert len(views) == 3 + plain
    positions = torch.tensor([5, 0, 11, 40])
    seen = []
    for view in range(len(views)):
        x = views.show(view, positions)
        seen.append(x)
        for name, module in functions().items():
            assert torch.allclose(views.outputs(view, positions)[name], module(x.double()), rtol=1e-12)
    assert not torch.equal(seen[0], seen[1])
    if plain:
        assert torch.equal(seen[3], stream.pixels.normalise(split.take(positions)[0]))
    mixed = torch.tensor([2, 0, 1, 2])
    expected = torch.stack([seen[v][row] for row, v in enumerate(mixed.tolist())])
    assert torch.equal(views.show(mixed, positions), expected)
    values = views.outputs(mixed, positions)["then"]
    assert torch.allclose(values, functions()["then"](expected.double()), rtol=1e-12)


def test_the_budget_counts_every_output_byte() -> None:
    stream = make_stream((2, 2), per_class=20)
    split = stream.tasks[0].train
    view = len(split) * 7 * 8  # seven doubles an image

    def fit(max_bytes: int, num_other_images: int = 0, views: int = 4) -> int:
        functions = cached(views, max_bytes)
        return num_views_that_fit(functions, split, stream.pixels, HERE, num_other_images=num_other_images)

    assert [fit(4 * view), fit(4 * view - 1), fit(view), fit(view - 1)] == [4, 3, 1, 0]
    assert fit(4 * view, num_other_images=1) == 3
    assert fit(100 * view) == 4
    assert fit(100 * view, views=0) == 0


class Log(Observer):
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []

    def event(self, kind: str, **values: object) -> None:
        self.events.append({"kind": kind, **values})


def second_stage(log: Log, max_bytes: int = 1 << 30, **options: object) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The view of every step of a second stage of four epochs, and its frozen features beside those computed anew."""
    stream = make_stream((2, 2), per_class=20)
    learner = make_learner("rfe", stream, epochs=4, **options)
    task = stream.tasks[0]
    learner.begin_task(task.info)
    phase = list(learner.phases(task.info))[-1]
    assert phase.cached is not None
    shown, features = [], []

    def step(batch: Batch, update: Update) -> None:
        shown.append(batch.x)
        features.append(dict(batch.cached) | {"again": phase.cached(batch.x)["now"]})
        phase.step(batch, update)

    watched = replace(phase, step=step, cached=replace(phase.cached, max_bytes=max_bytes))
    training, runtime = Training(epochs=4, batch_size=8), Runtime.choose("cpu")
    fit = Fit(learner, watched, task.train, task.validation, pixels=stream.pixels, training=training, runtime=runtime,
              key=Key(0), title="it")  # fmt: skip
    fit.run(log, lambda _num: None)
    return shown, features


@pytest.mark.parametrize(("views", "distinct"), [(1, 1), (2, 2), (4, 4), (0, 4), (9, 4)])
def test_a_phase_cycles_through_its_views_and_has_their_features(views: int, distinct: int) -> None:
    log = Log()
    shown, features = second_stage(log, views=views)
    steps = len(shown) // 4
    epochs = [torch.cat(shown[e * steps : (e + 1) * steps]).flatten(1) for e in range(4)]
    orders = [{row.numpy().tobytes() for row in epoch} for epoch in epochs]
    assert len({frozenset(order) for order in orders}) == distinct
    for values in features:
        assert torch.allclose(values["now"], values["again"], atol=1e-5)
    asked = [event for event in log.events if event["kind"] == "views"]
    assert [(event["asked"], event["kept"]) for event in asked] == ([(distinct, distinct)] if views else [])


def test_too_small_a_budget_is_reported_and_fresh_views_are_computed() -> None:
    with pytest.warns(UserWarning, match="4 views of .* do not fit into 0 MB: fresh views are computed every epoch"):
        shown, _ = second_stage(Log(), max_bytes=100, views=4)
    plain, _ = second_stage(Log(), views=0)
    assert all(torch.equal(a, b) for a, b in zip(shown, plain, strict=True))
