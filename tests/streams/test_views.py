"""Views kept are the views shown: what frozen functions said of them is what they would say again."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import make_learner, make_stream
from torch import Tensor, nn

from recollect.engine import Observer, Runtime
from recollect.engine.fit import Fit
from recollect.engine.training import Training
from recollect.rng import Key
from recollect.streams import Known, Views

HERE = torch.device("cpu")


def functions() -> dict[str, nn.Module]:
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 5))
    return {"now": nn.Sequential(*layers).double(), "then": nn.Sequential(nn.Flatten(), nn.Linear(768, 2)).double()}


def known(views: int, most_bytes: int = 1 << 20) -> Known:
    each = functions()
    return Known({name: (lambda x, m=module: m(x.double())) for name, module in each.items()}, views, most_bytes)


@pytest.mark.parametrize("plain", [False, True])
def test_what_is_kept_equals_what_the_functions_say_of_the_view_shown(plain: bool) -> None:
    stream = make_stream((3, 2), per_class=20)
    split = stream.tasks[0].train
    views = Views(split, stream.pixels, known(3), Key(4), 3, HERE, plain=plain)
    assert len(views) == 3 + plain
    positions = torch.tensor([5, 0, 11, 40])
    seen = []
    for view in range(len(views)):
        x = views.shown(view, positions)
        seen.append(x)
        for name, module in functions().items():
            assert torch.allclose(views.known(view, positions)[name], module(x.double()), rtol=1e-12)
    assert not torch.equal(seen[0], seen[1])
    if plain:
        assert torch.equal(seen[3], stream.pixels.plain(split.take(positions)[0]))
    mixed = torch.tensor([2, 0, 1, 2])
    each = torch.stack([seen[v][row] for row, v in enumerate(mixed.tolist())])
    assert torch.equal(views.shown(mixed, positions), each)
    values = views.known(mixed, positions)["then"]
    assert torch.allclose(values, functions()["then"](each.double()), rtol=1e-12)


def test_the_budget_counts_every_output_byte() -> None:
    stream = make_stream((2, 2), per_class=20)
    split = stream.tasks[0].train
    view = len(split) * 7 * 8  # seven doubles an image
    fit = lambda most, beside=0: known(4, most).num_that_fit(split, stream.pixels, HERE, beside=beside)  # noqa: E731
    assert [fit(4 * view), fit(4 * view - 1), fit(view), fit(view - 1)] == [4, 3, 1, 0]
    assert fit(4 * view, beside=1) == 3
    assert fit(100 * view) == 4
    assert known(0).num_that_fit(split, stream.pixels, HERE) == 0


class Log(Observer):
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []

    def event(self, kind: str, **values: object) -> None:
        self.events.append({"kind": kind, **values})


def second_stage(log: Log, **options: object) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """What every step of a second stage of four epochs was shown, and its frozen features beside the functions' own."""
    stream = make_stream((2, 2), per_class=20)
    learner = make_learner("rfe", stream, epochs=4, **options)
    learner.begin_task(stream.tasks[0].info)
    phase = list(learner.phases(stream.tasks[0].info))[-1]
    task = stream.tasks[0]
    training = Training(epochs=4, batch_size=8)
    fit = Fit(learner, phase, task.train, task.validation, pixels=stream.pixels, training=training,
              runtime=Runtime.choose("cpu"), key=Key(0), title="it")  # fmt: skip
    shown, kept = [], []
    original = phase.step

    def step(batch: object, update: object) -> None:
        shown.append(batch.x)
        kept.append(dict(batch.known) | {"again": phase.known(batch.x)["now"]})
        original(batch, update)

    object.__setattr__(phase, "step", step)
    fit.run(log, lambda _num: None)
    return shown, kept


@pytest.mark.parametrize(("views", "distinct"), [(1, 1), (2, 2), (4, 4), (0, 4), (9, 4)])
def test_a_phase_shows_its_views_in_turn_and_knows_their_features(views: int, distinct: int) -> None:
    log = Log()
    shown, kept = second_stage(log, views=views)
    steps = len(shown) // 4
    epochs = [torch.cat(shown[e * steps : (e + 1) * steps]).flatten(1) for e in range(4)]
    orders = [{row.numpy().tobytes() for row in epoch} for epoch in epochs]
    assert len({frozenset(order) for order in orders}) == distinct
    for values in kept:
        assert torch.allclose(values["now"], values["again"], atol=1e-5)
    asked = [event for event in log.events if event["kind"] == "views"]
    assert [(event["asked"], event["kept"]) for event in asked] == ([(distinct, distinct)] if views else [])


def test_too_small_a_budget_is_said_and_fresh_views_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.streams.views.Known.num_that_fit", lambda *_args, **_kw: 0)
    log = Log()
    with pytest.warns(
        UserWarning, match="4 views of .* images do not fit into 1024 MB: fresh ones are run every epoch"
    ):
        shown, _ = second_stage(log, views=4)
    plain, _ = second_stage(Log(), views=0)
    assert all(torch.equal(a, b) for a, b in zip(shown, plain, strict=True))
