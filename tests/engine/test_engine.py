"""The loop: plateaus, evaluation against a naive one, order of data, bad losses, going on after a stop."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import StopAt, StopError, make_learner, make_stream, teach
from torch import nn

from recollect.engine import Engine, Observer, Runtime, Training, checkpoint
from recollect.engine.evaluation import evaluate, measure_drift, original_features
from recollect.engine.update import NonFiniteLossError, Optimiser, Plateau
from recollect.errors import UserError
from recollect.methods import Phase, Schedule, Validation, methods
from recollect.nets import as_backbone
from recollect.nets.resnet import ResNet18
from recollect.storage import seal
from recollect.streams import Batch, Stream

NAMES = sorted(methods())


def phase_of(groups: dict[str, list[nn.Parameter]], rate: float = 1.0) -> Phase:
    return Phase("p", groups, lambda *_: None, lambda _: Validation({}), Schedule(1, rate), [])


def test_each_group_has_its_own_plateau() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    update = Optimiser(nn.ParameterList([a, b]), phase_of({"a": [a], "b": [b]}), Plateau(), 1, torch.device("cpu"))
    losses = [
        (5.0, 5.0),
        (4.0, 5.0),
        (3.0, 5.0),
        (2.0, 5.0),
        (2.0, 4.0),
        (2.0, 4.1),
        (2.0, 4.1),
        (2.0, 4.1),
        (2.0, 3.0),
    ]
    rates = [update.end_epoch({"a": x, "b": y}) for x, y in losses]
    # a stalls at epochs 5, 6, 7 and again 8, 9; b at 2, 3, 4, then improves, then stalls at 6, 7, 8
    assert [r["a"] for r in rates] == pytest.approx([1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.1])
    assert [r["b"] for r in rates] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_an_update_is_adam_and_moves_nothing_else() -> None:
    trained, still = nn.Linear(3, 2), nn.Linear(3, 2)
    twin = nn.Linear(3, 2)
    twin.load_state_dict(trained.state_dict())
    before = still.weight.clone()
    update = Optimiser(
        nn.ModuleList([trained, still]),
        phase_of({"g": list(trained.parameters())}, 0.1),
        Plateau(),
        5,
        torch.device("cpu"),
    )
    m = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    v = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for step in range(1, 6):
        x = torch.randn(4, 3)
        update((trained(x) + still(x)).square().mean())
        loss = (twin(x) + still(x).detach()).square().mean()
        grads = dict(zip(m, torch.autograd.grad(loss, list(twin.parameters())), strict=True))
        with torch.no_grad():
            for name, p in twin.named_parameters():
                m[name] = 0.9 * m[name] + 0.1 * grads[name]
                v[name] = 0.999 * v[name] + 0.001 * grads[name] ** 2
                p -= 0.1 * (m[name] / (1 - 0.9**step)) / ((v[name] / (1 - 0.999**step)).sqrt() + 1e-8)
    assert torch.allclose(trained.weight, twin.weight, atol=1e-5)
    assert torch.equal(still.weight, before)


@pytest.mark.parametrize("name", NAMES)
def test_both_evaluations_against_image_by_image(name: str) -> None:
    stream = make_stream((2, 3, 2))
    learner = make_learner(name, stream, epochs=2)
    record = teach(learner, stream).record
    learner.eval()
    for j, task in enumerate(stream.tasks):
        til = cil = 0
        first = sum(t.info.num_classes for t in stream.tasks[:j])
        for i in range(len(task.test)):
            image, label = task.test.take(torch.tensor([i]))
            with torch.no_grad():
                scores = learner.scores(stream.pixels.normalise(image))
            own = scores.til[0, first : first + task.info.num_classes].tolist()
            til += own.index(max(own)) == int(label) - first
            everything = scores.cil[0].tolist()
            cil += everything.index(max(everything)) == int(label)
        assert record.matrices["til"][-1][j] == pytest.approx(100 * til / len(task.test))
        assert record.matrices["cil"][-1][j] == pytest.approx(100 * cil / len(task.test))


@pytest.mark.parametrize("name", ["er", "rfe", "rfe-b"])
def test_many_small_tasks_are_read_in_full_batches_by_one_reader(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many batches as the images of all tasks fill, and the same accuracies as task by task."""
    stream = make_stream((2, 3, 2, 2, 2, 3), per_class=25)
    learner = make_learner(name, stream, epochs=2, fixed_heads=(2, 3, 2, 2, 2, 3))
    runtime, batches, num_readers = Runtime.choose("cpu"), list[int](), 0
    teach(learner, Stream(stream.name, stream.tasks[:4], stream.pixels, stream.image_shape))
    original = learner.reader

    def counting(*args: Any, **options: Any) -> Any:
        nonlocal num_readers
        num_readers += 1
        read = original(*args, **options)

        def counted(x: torch.Tensor) -> Any:
            batches.append(len(x))
            return read(x)

        return counted

    monkeypatch.setattr(learner, "reader", counting)
    monkeypatch.setattr("recollect.engine.evaluation.BATCH_SIZE", 100)
    tasks = [stream.tasks[j] for j in (5, 0, 1, 2, 3, 4)]
    empty = dataclasses.replace(stream.tasks[1].test, indices=torch.zeros(0).long(), labels=torch.zeros(0).long())
    tasks[2] = dataclasses.replace(tasks[2], test=empty)
    together = evaluate(learner, tasks, "test", stream.pixels, runtime)
    assert (batches, num_readers) == ([100, 100, 75], 1)
    alone = [evaluate(learner, [task], "test", stream.pixels, runtime) for task in tasks]
    assert together == {key: [each[key][0] for each in alone] for key in together}
    assert [accuracy is None for accuracy in together["cil"]] == [True, False, True, False, False, True]
    assert any(accuracy != together["til"][0] for accuracy in together["til"])


class Recorder(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.images = 0
        self.announced = 0

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def phase(self, title: str, num_images: int) -> None:
        self.announced += num_images

    def advance(self, num_images: int) -> None:
        self.images += num_images


def presented(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the stream's batches of the fit phases showed, view by view."""
    stream = make_stream()
    learner = make_learner(name, stream, epochs=2)
    shown: list[bytes] = []
    original = learner.phases

    def spying(task: Any) -> Any:
        for phase in original(task):

            def step(batch: Batch, update: Any, inner: Any = phase.step, spy: bool = phase.name == "fit") -> None:
                if spy:
                    shown.append(batch.x.numpy().tobytes())
                inner(batch, update)

            yield dataclasses.replace(phase, step=step)

    monkeypatch.setattr(learner, "phases", spying)
    teach(learner, stream, seed=seed)
    return shown


def test_all_methods_see_the_same_views_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = presented("finetune", 5, monkeypatch)
    assert len(set(reference)) == len(reference)  # every epoch draws anew
    for name in ("er", "rfe", "rfe-b"):
        assert presented(name, 5, monkeypatch) == reference
    assert presented("finetune", 6, monkeypatch) != reference


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits(name: str) -> None:
    stream = make_stream()
    a, b, c = (make_learner(name, stream, epochs=2) for _ in range(3))
    teach(a, stream, seed=1)
    torch.randn(7)  # other users of torch's global generator do not matter
    teach(b, stream, seed=1)
    teach(c, stream, seed=2)
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    assert any(not torch.equal(x, y) for x, y in zip(a.state_dict().values(), c.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_going_on_after_a_stop_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    stream = make_stream((2, 2, 2))
    whole = make_learner(name, stream)
    record = teach(whole, stream, drift=True).record
    total = record.num_images
    for share, seconds in ((0.2, 0.0), (0.5, 0.0), (0.7, 300.0), (0.9, 0.0)):  # saved after every step, or at ends only
        folder = tmp_path / str(share)
        often = {"checkpoints": folder, "checkpoint_seconds": seconds, "drift": True}
        with pytest.raises(StopError):
            teach(make_learner(name, stream), stream, observer=StopAt(int(share * total)), **often)
        learner = make_learner(name, stream)
        found = teach(learner, stream, checkpoints=folder, drift=True).record
        assert found.matrices == record.matrices
        assert found.drifted == record.drifted
        assert found.rectified == record.rectified
        state = learner.state_dict()
        assert all(torch.equal(tensor, state[key]) for key, tensor in whole.state_dict().items())


@pytest.mark.parametrize("name", ["finetune", "derpp", "cls-er", "rfe", "rfe-b"])
def test_going_on_in_mixed_precision_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    """Layers of more than one channel and pixel, so that what is laid out channels last in memory would show."""
    stream = make_stream((2, 2))
    whole, learner = (make_learner(name, stream, epochs=2, backbone=ResNet18(3, 2)) for _ in range(2))
    learner.load_state_dict(whole.state_dict())
    cut = copy.deepcopy(learner)
    record = teach(whole, stream, precision="bf16").record
    options = {"precision": "bf16", "checkpoints": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(StopError):
        teach(cut, stream, observer=StopAt(int(0.65 * record.num_images)), **options)
    assert "phase-0" in max(path.name for path in tmp_path.iterdir())
    assert teach(learner, stream, **options).record.matrices == record.matrices
    state = learner.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in whole.state_dict().items())


def test_convolutions_are_laid_out_channels_last_and_stay_so() -> None:
    stream = make_stream()
    learner = make_learner("rfe", stream, backbone=ResNet18(3, 2))
    teach(learner, stream)
    layers = [m for m in learner.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1 and m.in_channels > 1]
    assert len(layers) > 17
    assert all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in layers)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [flip_a_bit, cut_in_half, empty, Path.unlink])
@pytest.mark.parametrize("file", ["state.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(harm: Any, file: str, tmp_path: Path) -> None:
    """Said, and to the same bits; where none is intact the run is refused."""
    stream = make_stream()
    whole = make_learner("finetune", stream)
    record = teach(whole, stream, checkpoints=tmp_path).record
    before, last = sorted(tmp_path.glob("task-*"))
    harm(last / file)
    learner = make_learner("finetune", stream)
    with pytest.warns(UserWarning, match=f"{last.name} is damaged .*; it is removed, resuming from {before.name}"):
        again = teach(learner, stream, checkpoints=tmp_path).record
    assert again.matrices == record.matrices
    assert all(torch.equal(tensor, learner.state_dict()[key]) for key, tensor in whole.state_dict().items())
    for path in tmp_path.glob("task-*"):
        harm(path / file)
    with pytest.raises(UserError, match="is damaged .*, and there is no other; remove .* to start over"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path)


def test_a_checkpoint_of_another_run_or_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream()
    teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, run="mine")
    with pytest.raises(UserError, match=r"task-002 is of another run \(mine\); move it away to start over"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, run="yours")
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(UserError, match="task-002 is of format 1; move it away"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, run="mine")


@pytest.mark.parametrize("name", ["er", "rfe-p", "rfe-b", "agem"])
def test_when_a_task_has_ended_no_checkpoint_holds_what_memories_dropped(name: str, tmp_path: Path) -> None:
    """At that event only the newest is there, also after a kill between writing it and removing the others."""
    stream = make_stream((2, 2, 2))
    folders: list[list[str]] = []

    class Look(Observer):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "task":
                folders.append(sorted(path.name for path in tmp_path.iterdir()))

    teach(make_learner(name, stream), stream, checkpoints=tmp_path, checkpoint_seconds=0.0, observer=Look())
    assert folders == [["task-001"], ["task-002"], ["task-003"]]
    (tmp_path / "task-003").rename(tmp_path / "kept")
    teach(make_learner(name, stream), Stream(stream.name, stream.tasks[:2], stream.pixels, stream.image_shape),
          checkpoints=tmp_path, checkpoint_seconds=0.0)  # fmt: skip
    (tmp_path / "kept").rename(tmp_path / "task-003")
    assert len(list(tmp_path.glob("task-*"))) == 2
    teach(make_learner(name, stream), stream, checkpoints=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["task-003"]


def test_a_crash_while_saving_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, "task-001", {"a": torch.ones(2)}, {"n": 1})

    def crash(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr("recollect.engine.checkpoint.os.replace", crash)
        with pytest.raises(UserError, match="task-002 cannot be written .disk full.; .*task-001 is intact. Make room"):
            checkpoint.save(tmp_path, "task-002", {"a": torch.zeros(2)}, {"n": 2})
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert (found[0]["a"].tolist(), found[1]) == ([1.0, 1.0], {"n": 1})
    for name in ("task-001.phase-0.epoch-0003.step-000010", "task-001.phase-1.epoch-0000.step-000001", "task-002"):
        checkpoint.save(tmp_path, name, {"a": torch.zeros(2)}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["task-001.phase-1.epoch-0000.step-000001", "task-002"]


def test_a_crash_while_a_checkpoint_is_replaced_loses_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same name again: killed between the two renames, the old one is still there and is found."""
    checkpoint.save(tmp_path, "task-001", {"a": torch.ones(2)}, {"n": 1})
    original, calls = os.replace, []

    def crash(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        original(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("recollect.engine.checkpoint.os.replace", crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, "task-001", {"a": torch.zeros(2)}, {"n": 2})
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found[1] == {"n": 1}
    checkpoint.save(tmp_path, "task-001", {"a": torch.zeros(2)}, {"n": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["task-001"]
    left = tmp_path / f"task-001{checkpoint.REPLACED}"  # killed before the old one could go
    shutil.copytree(tmp_path / "task-001", left)
    checkpoint.save(tmp_path, "task-001", {"a": torch.zeros(2)}, {"n": 4})
    assert [path.name for path in tmp_path.iterdir()] == ["task-001"]
    assert checkpoint.load_latest(tmp_path)[1] == {"n": 4}


def test_a_disk_that_cannot_be_read_now_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("task-001", "task-002"):
        checkpoint.save(tmp_path, name, {"a": torch.ones(2)}, {"n": 1})

    def fail(self: Path, mode: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail)
        with pytest.raises(UserError, match=r"task-002 cannot be read .*error.*; repair that and run again"):
            checkpoint.load_latest(tmp_path)
    assert len(checkpoint.ordered(tmp_path)) == 2


def test_the_thousandth_task_comes_after_the_nine_hundred_and_ninety_ninth(tmp_path: Path) -> None:
    for name in ("task-998", "task-999", "task-1000"):
        checkpoint.save(tmp_path, name, {"a": torch.ones(2)}, {})
    assert [path.name for path in checkpoint.ordered(tmp_path)] == ["task-999", "task-1000"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_loss_stops_the_run_and_names_the_step_and_the_checkpoint(
    bad: float, tmp_path: Path, monkeypatch
) -> None:
    stream = make_stream((2, 2))
    learner = make_learner("finetune", stream, epochs=2)
    original, calls = learner.step, []

    def step(batch: Batch, update: Any) -> None:
        calls.append(0)
        factor = bad if len(calls) == 6 + 5 else 1  # 3 steps an epoch: task 2, epoch 2, step 2
        original(batch, lambda loss: update(loss * factor))

    monkeypatch.setattr(learner, "step", step)
    with pytest.raises(NonFiniteLossError, match=rf"became {bad} at step 2 of task 2 · fit, epoch 2; .*task-001"):
        teach(learner, stream, checkpoints=tmp_path)


def test_drift_against_features_taken_by_hand() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe", stream, alpha=0.0, epochs=3)
    runtime = Runtime.choose("cpu")
    teach(learner, Stream(stream.name, stream.tasks[:1], stream.pixels, stream.image_shape))
    original = original_features(learner, stream.tasks[0], stream.pixels, runtime)
    learner = make_learner("rfe", stream, alpha=0.0, epochs=3)
    record = teach(learner, stream, drift=True).record
    learner.eval()
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(len(stream.tasks[0].test)))[0])
    with torch.no_grad():
        now, back = learner.network.backbone(x), learner.rfe.rewind(x, learner.network.backbone(x), to=0)
    assert record.drifted[1][0] == pytest.approx(float((now - original).square().mean().sqrt()), rel=1e-4)
    assert record.rectified[1][0] == pytest.approx(float((back - original).square().mean().sqrt()), rel=1e-4)
    assert record.drifted[0] == record.rectified[0] == [None, None]
    assert measure_drift(make_learner_like(learner), stream.tasks[0], original, stream.pixels, runtime)[0] is not None


def make_learner_like(learner: Any) -> Any:
    """Methods without a chain report drift and no rectified figure."""
    other = make_learner("finetune", make_stream((2, 2)), backbone=learner.network.backbone)
    for task in make_stream((2, 2)).tasks:
        other.begin_task(task.info)
    return other


def test_without_validation_images_the_training_loss_is_watched() -> None:
    stream = make_stream((2,), per_class=3)
    assert len(stream.tasks[0].validation) == 0
    recorder = Recorder()
    with pytest.warns(UserWarning, match="no validation images: the learning rate watches the training loss"):
        teach(make_learner("rfe", stream, epochs=2), stream, observer=recorder)
    epochs = [fields for kind, fields in recorder.events if kind == "epoch"]
    assert epochs
    assert all(set(e["validation"].values()) == {e["loss"]} for e in epochs)
    assert recorder.images == recorder.announced
    json.dumps(epochs)


def test_bf16_learns_too_and_evaluates_in_order() -> None:
    stream = make_stream((2, 2), per_class=20)
    learner = make_learner("rfe", stream, epochs=6)
    runtime = Runtime.choose("cpu", "bf16")
    Engine(learner, stream, Training(epochs=6, learning_rate=1e-2, batch_size=8), runtime, 0).run()
    found = evaluate(learner, stream.tasks, "test", stream.pixels, runtime)
    assert found["til"][1] is not None
    assert found["til"][1] > 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' is not available"),
        ({"precision": "fp8"}, "precision is"),
        ({"device": "cpu:foo"}, "device 'cpu:foo' is not available"),
        ({"device": "cpu:1"}, "device 'cpu:1' is not available"),
        ({"threads": -1}, "threads lies between"),
    ],
)
def test_runtime_refuses_what_is_not_there(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Runtime.choose(**options)


def test_the_plateau_watches_validation_and_takes_patience_and_factor() -> None:
    """A validation loss that cannot fall lowers the rate however well training goes, as often as patience says."""
    stream = make_stream((2,), per_class=20)
    learner = make_learner("finetune", stream, epochs=6)
    original = learner.phases
    worse = iter(range(100))

    def rising(task: Any) -> Any:
        for phase in original(task):
            yield dataclasses.replace(
                phase, validate=lambda _: Validation({"classifier": torch.tensor(float(next(worse)))})
            )

    learner.phases = rising  # type: ignore[method-assign]
    recorder = Recorder()
    training = Training(epochs=6, learning_rate=1e-2, batch_size=8, patience=2, factor=0.5)
    Engine(learner, stream, training, Runtime.choose("cpu"), 0, observer=recorder).run()
    epochs = [fields for kind, fields in recorder.events if kind == "epoch"]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    rates = [epoch["learning_rate"]["classifier"] for epoch in epochs]
    assert rates == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])


def test_a_phase_that_may_end_early_ends_with_its_best_weights_also_when_it_was_cut(tmp_path: Path) -> None:
    stream = make_stream((2,), per_class=20)

    def learner_of(epochs: int, patience: int) -> Any:
        learner = make_learner("finetune", stream, epochs=epochs)
        learner.setup = dataclasses.replace(learner.setup, schedule=Schedule(epochs, 0.05, patience))
        return learner

    recorder, early, cut = Recorder(), learner_of(30, 2), learner_of(30, 2)
    teach(early, stream, observer=recorder)
    losses = [fields["validation"]["classifier"] for kind, fields in recorder.events if kind == "epoch"]
    best = losses.index(min(losses))
    assert best == len(losses) - 3 < 27
    short = learner_of(best + 1, 0)
    teach(short, stream)
    num_images = len(losses) * len(stream.tasks[0].train)
    with pytest.raises(StopError):
        teach(cut, stream, observer=StopAt(num_images - 20), checkpoints=tmp_path, checkpoint_seconds=0.0)
    cut = learner_of(30, 2)
    teach(cut, stream, checkpoints=tmp_path)
    for found in (early, cut):
        state = found.state_dict()
        assert all(torch.equal(tensor, state[key]) for key, tensor in short.state_dict().items())


def test_validation_figures_come_from_validation_images(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream((2, 2), per_class=20)
    asked: list[tuple[str, Any]] = []

    def spying(learner: Any, tasks: Any, part: Any, *rest: Any) -> Any:
        asked.append((part, evaluate(learner, tasks, part, *rest)))
        return asked[-1][1]

    monkeypatch.setattr("recollect.engine.loop.evaluate", spying)
    record = teach(make_learner("finetune", stream), stream).record
    assert [part for part, _ in asked] == ["test", "test", "validation"]
    assert record.validation == {name: pytest.approx(sum(asked[-1][1][name]) / 2) for name in ("til", "cil")}
    empty = dataclasses.replace(stream.tasks[0], test=dataclasses.replace(stream.tasks[0].test, indices=torch.zeros(0)))
    found = evaluate(
        make_learner_begun("finetune", stream), [empty], "validation", stream.pixels, Runtime.choose("cpu")
    )
    assert found["til"][0] is not None  # the test split was not looked at


def make_learner_begun(name: str, stream: Stream) -> Any:
    learner = make_learner(name, stream)
    for task in stream.tasks:
        learner.begin_task(task.info)
    return learner


def test_forward_transfer_counts_from_the_accuracy_before_any_training() -> None:
    stream = make_stream((2, 3))
    learner = make_learner("finetune", stream, fixed_heads=(2, 3))
    runtime = Runtime.choose("cpu")
    untrained = evaluate(learner, stream.tasks, "test", stream.pixels, runtime)["til"]
    record = teach(learner, stream).record
    assert record.at_start["til"] == untrained
    assert any(accuracy > 0 for accuracy in untrained)


def test_joint_under_task_units_trains_every_head() -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("joint", stream, units="task")
    for task in stream.tasks:
        learner.begin_task(task.info)
    before = [head.weight.clone() for head in learner.network.heads]
    other = make_learner("joint", stream, units="task")
    teach(other, stream)
    assert all(not torch.equal(old, head.weight) for old, head in zip(before, other.network.heads, strict=True))


def test_only_the_modules_of_a_phase_are_in_training_mode() -> None:
    """While r and h learn, f_t must evaluate: its BatchNorm statistics stay as stage 1 left them."""
    stream = make_stream()
    learner = make_learner("rfe", stream)
    original, seen = learner.phases, []

    def spying(task: Any) -> Any:
        for phase in original(task):

            def step(batch: Batch, update: Any, inner: Any = phase.step, name: str = phase.name) -> None:
                seen.append((name, learner.network.backbone.training))
                inner(batch, update)

            yield dataclasses.replace(phase, step=step)

    learner.phases = spying  # type: ignore[method-assign]
    teach(learner, stream)
    assert set(seen) == {("fit", True), ("retrospect", False)}


def test_dropout_of_a_users_backbone_repeats_to_the_bit_and_resumes(tmp_path: Path) -> None:
    stream = make_stream((2, 2))

    def fresh() -> Any:
        torch.manual_seed(0)
        own = nn.Sequential(nn.Flatten(), nn.Linear(768, 10), nn.Dropout(0.5))
        return make_learner("er", stream, backbone=as_backbone(own, stream.image_shape), epochs=2)

    whole = fresh()
    teach(whole, stream)
    with pytest.raises(StopError):
        teach(fresh(), stream, checkpoints=tmp_path, observer=StopAt(40))
    torch.randn(11)
    again = fresh()
    teach(again, stream, checkpoints=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))


def test_weights_ruined_by_the_last_step_are_not_called_good(tmp_path: Path) -> None:
    stream = make_stream((2, 2), per_class=10)
    training = Training(epochs=1, learning_rate=1e30, batch_size=1000)
    learner = make_learner("finetune", stream, epochs=1)
    learner.setup = dataclasses.replace(learner.setup, schedule=Schedule(1, 1e30))
    with pytest.raises(
        NonFiniteLossError, match="validation loss of the classifier became .* there is no earlier checkpoint"
    ):
        Engine(learner, stream, training, Runtime.choose("cpu"), 0, checkpoints=tmp_path).run()
    assert not list(tmp_path.glob("task-*"))


def test_going_on_under_another_environment_is_said(tmp_path: Path) -> None:
    stream = make_stream((2, 2))
    teach(make_learner("finetune", stream), stream, checkpoints=tmp_path)
    path = sorted(tmp_path.glob("task-*"))[-1] / "state.json"
    state = json.loads(path.read_text())
    state["state"]["record"]["environment"]["threads"] = 77
    del state["check"]
    path.write_text(json.dumps(seal(state, "check")))
    recorder = Recorder()
    with pytest.warns(UserWarning, match="another environment, so not to the same bits: threads was 77 and is"):
        teach(make_learner("finetune", stream), stream, checkpoints=tmp_path, observer=recorder)
    (resumed,) = [fields for kind, fields in recorder.events if kind == "resumed"]
    assert list(resumed["changed"]) == ["threads"]


def test_joint_pads_its_drift_like_its_accuracies() -> None:
    stream = make_stream((2, 2, 2))
    record = teach(make_learner("joint", stream), stream, drift=True).record
    assert [len(row) for row in record.drifted] == [3, 3, 3]
    assert record.drifted[:2] == [[None] * 3] * 2
