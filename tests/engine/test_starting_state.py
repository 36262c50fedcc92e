"""A learner that has learned some tasks elsewhere learns the rest as if it had never stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.engine import Engine, Runtime, Training
from recollect.errors import StoppedError
from recollect.methods import Learner, methods
from recollect.streams import Stream
from recollect.testing.harness import EPOCHS, build, make_small, make_stream, teach

CASES: list[tuple[str, dict[str, Any]]] = [
    ("finetune", {}),
    ("er", {}),
    ("rfe", {}),
    ("rfe-b", {}),
    ("rfe", {"stride": 2}),
]


def restored(method: str, options: dict[str, Any], stream: Stream, num_learned: int) -> Learner[Any]:
    """A new learner in the state that another has after its first tasks."""
    row = make_small(methods()[method], **options)
    first = build(row, stream)
    teach(first, replace(stream, tasks=stream.tasks[:num_learned]))
    learner = build(row, stream)
    for task in stream.tasks[:num_learned]:
        learner.begin_task(task.info)
    learner.load_deployable_state(first.deployable_state())
    return learner


@pytest.mark.filterwarnings("ignore:identity='average'")
@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("num_learned", [1, 2])
def test_learning_from_a_starting_state_gives_the_same_bits(
    method: str, options: dict[str, Any], num_learned: int
) -> None:
    stream = make_stream([2, 2, 2])
    expected = build(make_small(methods()[method], **options), stream)
    teach(expected, stream)
    learner = restored(method, options, stream, num_learned)
    teach(learner, stream, num_learned=num_learned)
    state = learner.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(state[name], tensor), name


def test_deployable_state_of_rfe_holds_neither_teacher_nor_adapter() -> None:
    learner = build(make_small(methods()["rfe"]), stream := make_stream([2, 2]))
    teach(learner, stream)
    omitted = learner.state_dict().keys() - learner.deployable_state().keys()
    assert {name.split(".")[1] for name in omitted} == {"anchor", "adapter"}
    with pytest.raises(RuntimeError, match="Missing key"):
        learner.load_deployable_state(dict(list(learner.deployable_state().items())[1:]))


def test_interrupted_learning_from_a_starting_state_resumes_to_the_same_bits(tmp_path: Path) -> None:
    stream = make_stream([2, 2])
    expected = restored("rfe", {}, stream, 1)
    teach(expected, stream, num_learned=1)

    def start(learner: Learner[Any], stop_at: int) -> None:
        engine = Engine(
            learner, stream, Training(epochs=EPOCHS, learning_rate=1e-2, batch_size=8), Runtime.choose(), 1,
            num_learned=1, checkpoints=tmp_path,
        )  # fmt: skip
        count = 0

        def advance(num_images: int) -> None:
            nonlocal count
            count += 1
            if count == stop_at:
                engine.stop.number = 15

        engine.observer.advance = advance  # type: ignore[method-assign]
        engine.run()

    with pytest.raises(StoppedError):
        start(restored("rfe", {}, stream, 1), stop_at=3)
    learner = restored("rfe", {}, stream, 1)
    start(learner, stop_at=-1)
    state = learner.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(state[name], tensor), name
