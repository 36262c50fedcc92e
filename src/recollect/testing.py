"""The conformance suite: what every method must do, for ours and for yours.

    from recollect.testing import check_method

    def test_my_method():
        check_method("my-method")                       # registered, or an entry point
        check_method(Method(MyLearner, MyConfig(), "")) # or the row itself

Each check raises AssertionError with what was expected. The streams are random pictures of a few pixels; nothing is
downloaded and all checks of a method together take seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recollect.core.frozen import Averaged, Frozen
from recollect.engine import Engine, Observer, Runtime, Training
from recollect.methods import Learner, Method, Schedule, Setup, methods
from recollect.nets import Network, as_backbone
from recollect.nets.convnet import ConvNet
from recollect.registry import lookup
from recollect.rng import Key
from recollect.runs.settings import check, options_of
from recollect.streams import Stream, stream_from_tensors

SMALL = {"memory": 6, "auxiliary_dim": 8, "projection_dim": 4, "attention_dim": 4, "fisher_samples": 5}
EPOCHS = 2


def check_method(method: str | Method) -> None:
    """Hold a method to the contract: every check below, one after the other."""
    row: Method = lookup("method", methods(), method) if isinstance(method, str) else method
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a method warns of on odd streams is its own affair
        for each in CHECKS:
            each(row)


def pictures(sizes: Sequence[int], *, size: int = 16, channels: int = 3, per_class: int = 10) -> Stream:
    """Random pictures whose brightness tells the class, in tasks of the given sizes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(sum(sizes)).repeat_interleave(per_class)
    noise = torch.randint(0, 60, (len(labels), channels, size, size), generator=generator)
    images = (noise + (labels * 180 // max(sum(sizes) - 1, 1))[:, None, None, None]).to(torch.uint8)
    names = [str(label) for label in range(sum(sizes))]
    tasks = [names[sum(sizes[:t]) : sum(sizes[: t + 1])] for t in range(len(sizes))]
    return stream_from_tensors(images, labels, images.flip(0), labels.flip(0), tasks=tasks, crop_padding=2)


def build(row: Method, stream: Stream, backbone: nn.Module | None = None) -> Learner[Any]:
    """A small learner, before its first task."""
    known = {field.name for field in dataclasses.fields(row.config)}
    config = dataclasses.replace(row.config, **{name: value for name, value in SMALL.items() if name in known})
    with Key(1).initialising():
        network = Network(backbone or ConvNet(stream.image_shape[0], 4), Key(1))
    return row.learner(network, config, Setup(stream.image_shape, Schedule(EPOCHS, 1e-2), Key(1)))


def teach(learner: Learner[Any], stream: Stream, **options: Any) -> Engine:
    """Learn the stream on this machine's processor or accelerator."""
    training = Training(epochs=EPOCHS, learning_rate=1e-2, batch_size=8)
    engine = Engine(learner, stream, training, Runtime.choose(), 1, **options)
    engine.run()
    return engine


def scores_are_shaped_and_finite(row: Method) -> None:
    """Tasks of unequal size, one of a single class, a single task, another image size, one channel."""
    for stream in (pictures((2, 1, 3)), pictures((3,)), pictures((2, 2), size=20, channels=1)):
        learner = build(row, stream)
        record = teach(learner, stream).record
        num_units = sum(task.info.num_classes for task in stream.tasks)
        images = stream.tasks[0].test.take(torch.arange(4))[0].to(next(learner.parameters()).device)
        with torch.no_grad():
            scores = learner.eval().scores(stream.pixels.plain(images))
        for name, found in (("til", scores.til), ("cil", scores.cil), ("til_without_chain", scores.til_without_chain)):
            if found is not None:
                assert found.shape == (4, num_units), (
                    f"{name} has shape {tuple(found.shape)}, expected {(4, num_units)}"
                )
                assert bool(torch.isfinite(found).all()), f"{name} is not finite"
        last = record.matrices["til"][-1]
        assert all(cell is not None and 0 <= cell <= 100 for cell in last), f"the last row of til is {last}"


def only_trained_parameters_move(row: Method) -> None:
    """Outside its groups a phase moves no parameter; a frozen teacher's weights never move."""
    stream = pictures((2, 2))
    learner = build(row, stream)
    original = learner.phases

    def watched(task: Any) -> Any:
        for phase in original(task):
            trained = {id(p) for group in phase.groups.values() for p in group}
            averaged = {
                id(p) for name, p in learner.named_parameters() if not p.requires_grad and _is_average(learner, name)
            }
            before = {
                name: p.detach().clone()
                for name, p in learner.named_parameters()
                if id(p) not in trained and id(p) not in averaged
            }
            assert trained, f"the phase {phase.name} trains nothing"
            yield phase
            now = dict(learner.named_parameters())
            moved = [name for name, value in before.items() if not torch.equal(value, now[name].detach())]
            assert not moved, f"the phase {phase.name} moved {moved[:3]}, which it does not list"

    learner.phases = watched  # type: ignore[method-assign]
    teach(learner, stream)
    for module in learner.modules():
        if isinstance(module, Frozen):
            assert not any(part.training for part in module.train().modules()), "a frozen teacher was woken by train()"


def memory_stays_within_its_budget(row: Method) -> None:
    """After every step: no more samples than allowed, and no more bytes than so many samples take."""
    stream = pictures((2, 2, 2))
    learner = build(row, stream)

    class Watch(Observer):
        def advance(self, num_images: int) -> None:
            for memory in learner.memories():
                limit = sum(buffer.nbytes for buffer in memory.buffers())
                assert len(memory) <= memory.capacity, f"{len(memory)} samples in a memory of {memory.capacity}"
                assert memory.num_bytes <= limit, f"{memory.num_bytes} bytes held, {limit} allowed"
                assert memory.capacity == SMALL["memory"], f"the budget is {SMALL['memory']}, not {memory.capacity}"

    teach(learner, stream, observer=Watch())


def same_seed_gives_same_bits(row: Method) -> None:
    """Two runs agree in every tensor, whatever else draws from torch's global generator."""
    stream = pictures((2, 2))
    first, second = build(row, stream), build(row, stream)
    teach(first, stream)
    torch.randn(3)
    teach(second, stream)
    _assert_same(first, second, "a second run with the same seed")


def resumes_mid_phase_to_the_same_bits(row: Method) -> None:
    """Stopped inside each third of the run and gone on with from its checkpoint, a run ends as if it had not been."""

    class StopError(Exception):
        pass

    class Stop(Observer):
        def __init__(self, after: float) -> None:
            self.left = after

        def advance(self, num_images: int) -> None:
            self.left -= num_images
            if self.left < 0:
                raise StopError

    stream = pictures((2, 1, 2))
    whole = build(row, stream)
    record = teach(whole, stream).record
    for share in (0.15, 0.5, 0.85):
        with tempfile.TemporaryDirectory() as folder:
            options = {"checkpoints": Path(folder), "checkpoint_seconds": 0.0}
            with contextlib.suppress(StopError):
                teach(build(row, stream), stream, observer=Stop(share * record.num_images), **options)
            learner = build(row, stream)
            again = teach(learner, stream, **options).record
        assert again.matrices == record.matrices, f"accuracies differ after a stop at {share:.0%} of the run"
        _assert_same(whole, learner, f"the run stopped at {share:.0%}")


def config_survives_json(row: Method) -> None:
    """Written to config.json and read again, the options are the same and pass their own checks."""
    plain = json.loads(json.dumps(dataclasses.asdict(row.config), allow_nan=False))
    options = options_of("method", row.config)
    again = dataclasses.replace(row.config, **{name: check(options[name], value) for name, value in plain.items()})
    assert again == row.config, f"{again} is not {row.config}"
    undocumented = [name for name, option in options.items() if not option.about]
    assert not undocumented, f"options without a line about them: {undocumented}"


def takes_a_backbone_of_the_users(row: Method) -> None:
    """Any module with features [batch, dim]: without BatchNorm, with negative features, with dropout."""
    stream = pictures((2, 2))
    with Key(2).initialising():
        own = nn.Sequential(nn.Flatten(), nn.Linear(768, 10), nn.Dropout(0.1))
    learner = build(row, stream, as_backbone(own, stream.image_shape))
    matrix = teach(learner, stream).record.matrices["cil"]
    assert all(cell is not None for cell in matrix[-1])


def counts_its_parameters(row: Method) -> None:
    """At least what is needed at inference is held while training, and it is something."""
    stream = pictures((2, 2))
    learner = build(row, stream)
    teach(learner, stream)
    counts = learner.parameter_counts()
    held = sum(parameter.numel() for parameter in learner.parameters())
    assert 0 < counts.inference <= counts.training <= held, f"{counts} with {held} parameters held"


CHECKS: tuple[Callable[[Method], None], ...] = (
    scores_are_shaped_and_finite,
    only_trained_parameters_move,
    memory_stays_within_its_budget,
    same_seed_gives_same_bits,
    resumes_mid_phase_to_the_same_bits,
    config_survives_json,
    takes_a_backbone_of_the_users,
    counts_its_parameters,
)


def _is_average(learner: nn.Module, name: str) -> bool:
    """Whether a parameter belongs to a moving average, which moves by its own rule."""
    return any(isinstance(m, Averaged) and name.startswith(f"{prefix}.") for prefix, m in learner.named_modules())


def _assert_same(a: nn.Module, b: nn.Module, what: str) -> None:
    mine, theirs = a.state_dict(), b.state_dict()
    assert mine.keys() == theirs.keys(), f"{what} has other tensors"
    different = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not different, f"{what} differs in {different[:3]}"
