"""finetune, joint and er; the registry; and what holds for every method."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from recollect.engine import Runtime
from recollect.engine.evaluation import evaluate
from recollect.errors import UserError
from recollect.methods import methods
from recollect.nets import Network
from recollect.rng import Key
from recollect.runs import resolve
from recollect.streams import Stream
from tests.support import batch_of, loss_of, make_learner, make_stream, phases, teach

NAMES = sorted(methods())


def test_rfe_its_forms_and_basic_baselines_are_registered() -> None:
    expected = {
        "er",
        "finetune",
        "joint",
        "rfe",
        "rfe-b",
        "rfe-e2e",
        "rfe-mlp-projection",
        "rfe-mlp-residual",
        "rfe-no-aux",
        "rfe-affine",
        "rfe-p",
    }
    assert expected <= set(NAMES)


@pytest.mark.parametrize("units", ["seen", "task"])
def test_finetune_trains_cross_entropy_and_freezes_old_heads_under_task(units: str) -> None:
    stream = make_stream((2, 3))
    learner = make_learner("finetune", stream, units=units)
    for task in stream.tasks:
        learner.begin_task(task.info)
    batch = batch_of(stream, 1)
    logits = copy.deepcopy(learner.network).train()(batch.x)
    expected = F.cross_entropy(logits, batch.y) if units == "seen" else F.cross_entropy(logits[:, 2:], batch.y - 2)
    phase = phases(learner, stream, 1)["fit"]
    assert torch.allclose(loss_of(phase, batch), expected, atol=1e-6)
    trained = {id(p) for p in phase.groups["classifier"]}
    assert (id(learner.network.heads[0].weight) in trained) == (units == "seen")


@pytest.mark.parametrize("units", ["seen", "task", "all"])
def test_er_adds_cross_entropy_on_a_replayed_batch(units: str) -> None:
    stream = make_stream((2, 3, 2))
    learner = make_learner("er", stream, units=units, fixed_heads=(2, 3, 2))
    learner.begin_task(stream.tasks[0].info)
    first = batch_of(stream, 0)
    learner.remember(first)
    learner.begin_task(stream.tasks[1].info)
    assert sorted(learner.memory.labels.tolist()) == sorted(first.y.tolist())
    assert set(learner.memory.tasks.tolist()) == {0}
    batch = batch_of(stream, 1)
    past = learner.memory.sample(8, batch.rng("replay"))
    x = torch.cat([batch.x, batch.augment(past, "replayed view")])
    logits = copy.deepcopy(learner.network).train()(x)
    if units != "task":
        logits = logits[:, :5] if units == "seen" else logits
        expected = F.cross_entropy(logits[:8], batch.y) + F.cross_entropy(logits[8:], past.labels)
    else:
        expected = F.cross_entropy(logits[:8, 2:5], batch.y - 2) + F.cross_entropy(logits[8:, :2], past.labels)
    assert torch.allclose(loss_of(phases(learner, stream, 1)["fit"], batch), expected, atol=1e-6)


WITH_UNITS = sorted(name for name, method in methods().items() if hasattr(method.config, "units"))


@pytest.mark.parametrize("name", WITH_UNITS)
def test_units_all_trains_the_units_of_future_tasks(name: str) -> None:
    stream = make_stream((2, 3))
    learner = make_learner(name, stream, units="all", fixed_heads=(2, 3), distill=0.0)
    learner.begin_task(stream.tasks[0].info)
    batch, phase = batch_of(stream, 0), phases(learner, stream, 0)["fit"]
    network = copy.deepcopy(learner.network).train()
    f = network.backbone(batch.x)
    logits = network.logits(learner.attentions[0](f) * f if name == "tamil" else f)
    assert logits.shape[1] == 5
    num_units = 2 if name == "er-ace" else 5  # its incoming images are judged within their task whatever the units
    expected = F.cross_entropy(logits[:, :num_units], batch.y)
    assert torch.allclose(loss_of(phase, batch), expected, atol=1e-6)
    trained = {id(p) for p in phase.groups["classifier"]}
    assert all(id(p) in trained for p in learner.network.heads.parameters())


@pytest.mark.parametrize("name", WITH_UNITS)
def test_units_all_needs_fixed_heads(name: str) -> None:
    with pytest.raises(UserError, match="add --fixed-heads"):
        make_learner(name, make_stream(), units="all")
    with pytest.raises(UserError, match="add --fixed-heads"):
        resolve("split-digits", name, 0, {"units": "all"})
    assert resolve("split-digits", name, 0, {"units": "all"}, fixed_heads=True).method_options.units == "all"


@pytest.mark.parametrize("name", sorted({*WITH_UNITS} - {"joint"}))
def test_units_all_is_evaluated_over_the_units_seen(name: str) -> None:
    stream = make_stream((2, 3))
    learner = make_learner(name, stream, units="all", fixed_heads=(2, 3))
    teach(learner, Stream(stream.name, stream.tasks[:1], stream.pixels, stream.image_shape))
    for module in learner.modules():
        if isinstance(module, Network):  # moving averages too
            module.heads[1].bias.data += 100
    found = evaluate(learner, stream.tasks, "test", stream.pixels, Runtime.choose("cpu", "fp32"))
    assert found["cil"] == [found["til"][0], None]
    assert found["cil"][0] > 0


def test_er_offers_every_presentation_and_keeps_within_budget() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("er", stream, memory=5, epochs=3)
    teach(learner, stream)
    presented = 3 * sum(len(task.train) for task in stream.tasks)
    assert presented - learner.memory.num_offered <= 3 * 2  # a last batch of one image is left out
    assert len(learner.memory) == 5


@pytest.mark.parametrize(
    ("name", "offered"),
    [(n, 2) for n in ("er", "er-ace", "derpp", "er-mkd", "tamil", "cls-er")]
    + [("agem", 1), ("rfe-b", 1), ("rfe-p", 0)],
)
def test_memories_hold_what_was_shown_under_its_own_label_and_task(name: str, offered: int) -> None:
    """Every stored image is found in the stream with its label; a reservoir is offered all, each time or once."""
    stream = make_stream((2, 3, 2), per_class=8)
    learner = make_learner(name, stream, epochs=2, memory=12)
    teach(learner, stream)
    (memory,) = learner.memories()
    assert len(memory) == 12
    shown = {}
    for task in stream.tasks:
        images, labels = task.train.take(torch.arange(len(task.train)))
        shown |= {image.numpy().tobytes(): (int(y), task.info.index) for image, y in zip(images, labels, strict=True)}
    for image, label, task in zip(memory.images, memory.labels, memory.tasks, strict=True):
        assert shown[image.numpy().tobytes()] == (int(label), int(task))
    if offered:
        assert memory.num_offered == offered * len(shown)


def test_joint_learns_all_tasks_at_once_and_fills_only_the_last_row() -> None:
    stream = make_stream((2, 1, 2))
    engine = teach(make_learner("joint", stream, epochs=2), stream)
    matrix = engine.record.matrices["til"]
    assert matrix[:2] == [[None] * 3] * 2
    assert None not in matrix[2]
    assert engine.record.num_images == 2 * sum(len(task.train) for task in stream.tasks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(2, 3, 1), (1,), (1, 1)])
def test_every_method_learns_tasks_of_any_size(name: str, sizes: tuple[int, ...]) -> None:
    stream = make_stream(sizes)
    learner = make_learner(name, stream)
    record = teach(learner, stream).record
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(4))[0])
    with torch.no_grad():
        scores = learner.eval().scores(x)
    assert scores.til.shape == scores.cil.shape == (4, sum(sizes))
    assert bool(torch.isfinite(scores.til).all())
    assert bool(torch.isfinite(scores.cil).all())
    if name == "tamil":  # reads other features where the task is known
        return
    for til, cil in zip(record.matrices["til"], record.matrices["cil"], strict=True):
        assert all(a >= b for a, b in zip(til, cil, strict=True) if a is not None and b is not None)


@pytest.mark.parametrize("name", NAMES)
def test_grey_images_of_another_size_are_learned_with_a_custom_backbone(name: str) -> None:
    from torch import nn

    from recollect.nets import as_backbone

    stream = make_stream((2, 2), size=20, channels=1)
    own = nn.Sequential(nn.Conv2d(1, 6, 5, 3), nn.Flatten(), nn.Linear(6 * 36, 10), nn.Dropout(0.2))
    learner = make_learner(name, stream, backbone=as_backbone(own, stream.image_shape))
    matrix = teach(learner, stream).record.matrices["til"]
    assert all(cell is not None and 0 <= cell <= 100 for cell in matrix[-1])


@pytest.mark.parametrize("name", NAMES)
def test_fixed_heads_score_future_tasks(name: str) -> None:
    stream = make_stream((2, 3))
    record = teach(make_learner(name, stream, fixed_heads=(2, 3)), stream).record
    assert None not in record.at_start["til"]
    assert record.at_start["cil"] == [None, None]  # nothing is learned yet: there is no ranking
    if name != "joint":
        assert None not in record.matrices["til"][0]
        assert record.matrices["cil"][0][1] is None
        assert record.matrices["cil"][0][0] == record.matrices["til"][0][0] or name == "tamil"


@pytest.mark.parametrize(
    ("method", "option"),
    [("er-mkd", "ema_decay"), ("tamil", "ema_decay"), ("cls-er", "plastic_decay"), ("cls-er", "stable_decay")],
)
@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_an_average_that_never_moves_is_refused(method: str, option: str, decay: float) -> None:
    with pytest.raises(UserError, match=f"{option} is the decay of a moving average, from 0 to below 1, got {decay}"):
        resolve("split-digits", method, 0, {option: decay})


def test_learning_does_not_change_the_global_generator() -> None:
    stream = make_stream()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    teach(make_learner("finetune", stream), stream)
    assert torch.equal(torch.rand(4), expected)


def test_frozen_parameters_of_a_custom_backbone_stay_frozen() -> None:
    stream = make_stream()
    learner = make_learner("ewc", stream)
    first, *rest = learner.network.backbone.parameters()
    first.requires_grad_(False)
    network = Network(learner.network.backbone, Key(0))
    teach(methods()["ewc"].learner(network, learner.config, learner.setup), stream)
    assert not first.requires_grad
    assert all(parameter.requires_grad for parameter in rest)
