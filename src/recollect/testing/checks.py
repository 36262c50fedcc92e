"""The checks themselves: each takes a method's row and raises AssertionError with what was expected."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from recollect.core.frozen import Averaged, Frozen
from recollect.engine import Observer
from recollect.memory import Memory
from recollect.methods import Method, choose_method
from recollect.methods.learner import num_parameters
from recollect.nets import as_backbone
from recollect.rng import Key
from recollect.runs.settings import check, options_of
from recollect.testing.harness import (
    SMALL,
    Own,
    StopAt,
    StopError,
    assert_same,
    begin_first_task,
    build,
    copy_statistics,
    copy_untrained,
    make_small,
    make_stream,
    teach,
)


def scores_are_shaped_and_finite(row: Method) -> None:
    """Tasks of unequal size, one of a single class, a single task, another size, one channel, a class that returns."""
    returning = make_stream((2, 1), repeats=1)
    if row.learner.one_unit_per_class:
        returning = returning.with_one_unit_per_class()
    for stream in (make_stream((2, 1, 3)), make_stream((3,)), make_stream((2, 2), size=20, channels=1), returning):
        learner = build(row, stream)
        record = teach(learner, stream).record
        num_units = sum(stream.new_units())
        images = stream.tasks[0].test.take(torch.arange(4))[0].to(next(learner.parameters()).device)
        with torch.no_grad():
            scores = learner.eval().scores(stream.pixels.normalise(images))
        for name, values in (("til", scores.til), ("cil", scores.cil), ("til_without_chain", scores.til_without_chain)):
            if values is not None:
                assert values.shape == (4, num_units), (
                    f"{name} has shape {tuple(values.shape)}, expected {(4, num_units)}"
                )
                assert bool(torch.isfinite(values).all()), f"{name} is not finite"
        last = record.matrices["til"][-1]
        assert all(cell is not None and 0 <= cell <= 100 for cell in last), f"the last row of til is {last}"


def reads_alike(row: Method) -> None:
    """After every task all images have finite scores, alone or in a batch, from `reader` as from `scores`; reading
    changes nothing.
    """
    stream = make_stream((2, 2))
    learner = build(row, stream)

    class Read(Observer):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "task":
                self.read()

        @torch.no_grad()
        def read(self) -> None:
            learner.eval()
            before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
            images = torch.cat([task.test.take(torch.arange(len(task.test)))[0] for task in stream.tasks])
            x = stream.pixels.normalise(images.to(next(learner.parameters()).device))
            whole, fast = learner.scores(x), learner.reader(without_chain=True)(x)
            alone = [learner.scores(x[i : i + 1]) for i in range(0, len(x), 7)]
            for name in ("til", "cil", "til_without_chain"):
                scores, quick = getattr(whole, name), getattr(fast, name)
                if scores is None:
                    continue
                assert bool(torch.isfinite(scores).all()), f"{name} is not finite for every image"
                assert torch.allclose(quick, scores, atol=1e-4, rtol=1e-3), f"{name} differs between reader and scores"
                one_by_one = torch.cat([getattr(single, name) for single in alone])
                assert torch.allclose(one_by_one, scores[::7], atol=1e-4, rtol=1e-3), f"{name} depends on other images"
            now = learner.state_dict()
            changed = [name for name, tensor in before.items() if not torch.equal(tensor, now[name])]
            assert not changed, f"reading changed {changed[:3]}"

    teach(learner, stream, observer=Read())


def learns(row: Method) -> None:
    """The loss of a task's first phase falls from its first to its last epoch; a method without phases has none."""
    losses: list[float] = []

    class Listen(Observer):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "epoch" and fields["phase"] == first_phase:
                losses.append(fields["loss"])

    stream = make_stream((2,))
    first = next(iter(begin_first_task(row, stream).phases(stream.tasks[0].info)), None)
    if first is None:
        return
    first_phase = f"task 1 · {first.name}"
    teach(build(row, stream, epochs=8), stream, observer=Listen())
    assert losses[-1] < losses[0], f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f} over {len(losses)} epochs"


def only_trained_parameters_move(row: Method) -> None:
    """Outside its groups a phase moves no parameter and no BatchNorm statistics; `end_task` moves none; a frozen
    teacher's weights never move.
    """
    stream = make_stream((2, 2))
    learner = build(row, stream)
    phases, end_task = learner.phases, learner.end_task

    def watched(task: Any) -> Any:
        for phase in phases(task):
            trained = {id(p) for group in phase.groups.values() for p in group}
            assert trained, f"the phase {phase.name} trains nothing"
            trained_modules = {id(part) for module in phase.training for part in module.modules()}
            before = copy_untrained(learner, trained) | copy_statistics(learner, trained_modules)
            yield phase
            now = copy_untrained(learner, trained) | copy_statistics(learner, trained_modules)
            moved = [name for name, value in before.items() if not torch.equal(value, now[name])]
            assert not moved, f"the phase {phase.name} moved {moved[:3]}, which it does not list"

    def ended(task: Any, data: Any) -> None:
        before = copy_untrained(learner, set())
        end_task(task, data)
        now = copy_untrained(learner, set())
        moved = [name for name, value in before.items() if not torch.equal(value, now[name])]
        assert not moved, f"end_task moved {moved[:3]}"

    learner.phases, learner.end_task = watched, ended  # type: ignore[method-assign]
    teach(learner, stream)
    for module in learner.modules():
        if isinstance(module, Frozen):
            assert not any(part.training for part in module.train().modules()), "train() changed a frozen teacher"


def memory_stays_within_its_budget(row: Method, budget: int = SMALL["memory"]) -> None:
    """After every step all memories together hold no more samples than allowed, as bytes and not as floats; what keeps
    samples keeps some once a task has ended; and no image lies anywhere else.
    """
    stream = make_stream((2, 2, 2))
    learner = build(row, stream)
    image_bytes = torch.Size(stream.image_shape).numel()

    class Watch(Observer):
        def advance(self, num_images: int) -> None:
            memories = learner.memories()
            held = sum(map(len, memories))
            assert held <= budget, f"{held} samples held, the budget is {budget}"
            assert sum(memory.capacity for memory in memories) <= budget, f"room for more than the budget of {budget}"
            for memory in memories:
                num_bytes = memory.images[0].nbytes
                assert num_bytes == image_bytes, f"an image takes {num_bytes} bytes, not {image_bytes} as uint8"
            stored = {id(buffer) for memory in memories for buffer in memory.buffers()}
            for name, tensor in learner.state_dict(keep_vars=True).items():
                image = tensor.dtype == torch.uint8 or tuple(tensor.shape[1:]) == stream.image_shape
                assert id(tensor) in stored or not image, f"{name} looks like images, outside a Memory"

        def event(self, kind: str, **fields: Any) -> None:
            if kind == "task":
                for memory in learner.memories():
                    assert len(memory), "a memory is empty after a task"

    teach(learner, stream, observer=Watch())


def same_seed_gives_same_bits(row: Method) -> None:
    """Two runs agree in every tensor, whatever else draws from torch's global generator."""
    stream = make_stream((2, 2))
    first, second = build(row, stream), build(row, stream)
    teach(first, stream)
    torch.randn(3)
    teach(second, stream)
    assert_same(first, second, "a second run with the same seed")


def resumes_mid_phase_to_the_same_bits(row: Method) -> None:
    """A run that is stopped and resumed from its checkpoint, at two moments, ends with the same bits."""
    stream = make_stream((2, 1, 2))
    whole = build(row, stream)
    record = teach(whole, stream).record
    for share in (0.4, 0.85):
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = Path(folder)
            with contextlib.suppress(StopError):
                stop = StopAt(share * record.num_images)
                teach(build(row, stream), stream, observer=stop, checkpoints=checkpoints, checkpoint_seconds=0.0)
            learner = build(row, stream)
            again = teach(learner, stream, checkpoints=checkpoints).record
        assert again.matrices == record.matrices, f"accuracies differ after a stop at {share:.0%} of the run"
        assert_same(whole, learner, f"the run stopped at {share:.0%}")


def config_survives_json(row: Method) -> None:
    """Written to config.json and read again, the options are the same and pass their own checks."""
    plain = json.loads(json.dumps(dataclasses.asdict(row.config), allow_nan=False))
    options = options_of("method", row.config)
    again = dataclasses.replace(row.config, **{name: check(options[name], value) for name, value in plain.items()})
    assert again == row.config, f"{again} is not {row.config}"
    undocumented = [name for name, option in options.items() if not option.about]
    assert not undocumented, f"options without a line about them: {undocumented}"


def takes_a_backbone_of_the_users(row: Method) -> None:
    """Any module with features [batch, dim]: negative ones, with dropout, with layers that nothing reads and layers
    that are frozen, which stay so.
    """
    stream = make_stream((2, 2))
    with Key(2).initialising():
        own = Own()
    frozen = {name: tensor.clone() for name, tensor in own.frozen.state_dict().items()}
    learner = build(row, stream, as_backbone(own, stream.image_shape))
    matrix = teach(learner, stream).record.matrices["cil"]
    assert all(cell is not None for cell in matrix[-1])
    now = own.frozen.state_dict()
    moved = [name for name, tensor in frozen.items() if not torch.equal(tensor, now[name].to(tensor.device))]
    assert not moved, f"{moved} moved in layers that were frozen"


def ends_early_with_its_best(row: Method) -> None:
    """A phase that may end early ends with what it had at its best validation loss: all of it, of one epoch."""
    stream, ended = make_stream((2, 2)), []
    learner = build(row, stream, epochs=4, patience=1)
    phases = learner.phases

    class Watch(Observer):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "epoch":
                ended.append((sum(fields["validation"].values()), [p.detach().clone() for p in trained]))

    def watched(task: Any) -> Any:
        for phase in phases(task):
            trained[:] = [parameter for group in phase.groups.values() for parameter in group]
            ended.clear()
            yield phase
            best = min(ended, key=lambda epoch: epoch[0])[1]
            same = all(torch.equal(a, b) for a, b in zip(trained, best, strict=True))
            assert same, f"the phase {phase.name} did not end with the weights of its best epoch"

    trained: list[nn.Parameter] = []
    learner.phases = watched  # type: ignore[method-assign]
    teach(learner, stream, observer=Watch())


def counts_its_parameters(row: Method) -> None:
    """At least what is needed at inference is held while training, and it is something; statistics count too."""
    stream = make_stream((2, 2))
    learner = build(row, stream)
    teach(learner, stream)
    counts = learner.parameter_counts()
    held = num_parameters(learner) + sum(b.numel() for b in learner.buffers() if b.is_floating_point())
    assert 0 < counts.inference <= counts.training <= held, f"{counts} with {held} parameters held"
    teachers = num_parameters(*(module for module in learner.modules() if type(module) in (Averaged, Frozen)))
    least = counts.inference + teachers
    assert counts.training >= least, f"{counts}, but with its frozen and averaged networks it holds {least}"
    parts = (module for module in learner.modules() if not isinstance(module, (Memory, _BatchNorm)))
    own = [buffer for part in parts for buffer in part.buffers(recurse=False) if buffer.is_floating_point()]
    network = min(counts.inference, num_parameters(learner.network.backbone))  # a method may replace the backbone
    least = network + teachers + sum(buffer.numel() for buffer in own)
    assert counts.training >= least, f"{counts}, but with the numbers in its buffers it holds {least}"


CHECKS: tuple[Callable[[Method], None], ...] = (
    scores_are_shaped_and_finite,
    reads_alike,
    learns,
    only_trained_parameters_move,
    same_seed_gives_same_bits,
    resumes_mid_phase_to_the_same_bits,
    config_survives_json,
    takes_a_backbone_of_the_users,
    ends_early_with_its_best,
    counts_its_parameters,
)


def check_method(method: str | Method, *, small: Mapping[str, Any] | None = None, budget: int = 6) -> None:
    """Hold a method to the contract: every check below, one after the other."""
    row: Method = choose_method(method).row if isinstance(method, str) else method
    row = make_small(row, **(small or {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a method warns of on odd streams is its own affair
        for check_row in CHECKS:
            check_row(row)
        memory_stays_within_its_budget(row, budget)
