"""Every registered method learns streams beyond class splits: changing inputs, blurry and unequal tasks, one epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recollect import testing
from recollect.methods import methods
from recollect.runs.run import for_learner
from recollect.streams import Stream, StreamOptions, open_stream
from recollect.testing.harness import build, teach

SCENARIOS: dict[str, dict[str, Any]] = {
    "domain": {"shift": "rotated", "tasks": 2, "train_per_class": 5},
    "blurry": {"blur": 0.2, "tasks": 2, "train_per_class": 5},
    "imbalanced": {"imbalance": 4.0, "tasks": 2, "train_per_class": 8},
}


def stream_of(scenario: str) -> Stream:
    return open_stream("split-digits", StreamOptions(**SCENARIOS[scenario]), 0)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", sorted(methods()))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_method_learns_it_in_one_epoch(name: str, scenario: str) -> None:
    row = testing.make_small(methods()[name])
    stream = for_learner(stream_of(scenario), row.learner)
    learner = build(row, stream, epochs=1)
    matrices = teach(learner, stream).record.matrices
    for evaluation in ("til", "cil"):
        last = matrices[evaluation][-1]
        assert len(last) == len(stream.tasks)
        assert all(cell is not None and 0 <= cell <= 100 for cell in last), (evaluation, last)
    num_units = 10 if row.learner.one_unit_per_class else sum(len(task.info.class_names) for task in stream.tasks)
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(4))[0]).to(next(learner.parameters()).device)
    with torch.no_grad():
        scores = learner.eval().scores(x)
    assert scores.cil.shape == (4, num_units)
    assert bool(torch.isfinite(scores.cil).all())
