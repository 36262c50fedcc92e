"""What class statistics tell of earlier tasks, whose images are gone: pseudo-features drawn from their Gaussians.

    z = μ_c + s ε,    ε ~ N(0, Σ_c)

Gaussians of the features that were learned from are too narrow for new images: with s = 1 nearly all draws would be
classified correctly. So s is the width at which draws of the newest task are classified correctly as often as its
validation images are. It serves draws of all tasks until the next task is learned: a width is larger the fewer classes
there are to be mistaken for, so those of earlier tasks, and of the first, would be much too large later.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import torch
from torch import Tensor

from recollect.deploy.model import Accuracies, Model
from recollect.deploy.reader import Reader, unit_owners, unit_shares
from recollect.device import to_host
from recollect.rng import Key

NUM_DRAWS, MAX_DRAWS = 50, 5_000  # of each unit; of all together
WIDTHS = (0.25, 16.0)
STEPS = 12  # of the search for a width, each of which halves the range of its logarithm
HALF_A_MISTAKE = 0.5
"""What a task without mistakes counts for."""
MIN_IMAGES = 100
"""Validation images of the newest task, below which nothing is estimated."""
Draws = tuple[Tensor, Callable[[float], Tensor]]
"""The units of draws, and their log-probabilities by the width."""


def estimate_earlier_tasks(
    model: Model, reader: Reader, num_correct: int, num_images: int
) -> list[Accuracies | None] | None:
    """Accuracies of all tasks but the newest, of whose images so many are classified correctly over all classes.

    None for a task without classes, and for all where there is no earlier one, or too few images tell how wide it is.
    """
    units = reader.learner.network.units(len(model.tasks) - 1)
    if num_images < MIN_IMAGES or not units.start:
        return None
    newest, earlier = (_draw(model, reader, part) for part in (range(units.start, units.stop), range(units.start)))
    if newest is None or earlier is None:
        return None
    labels, scores = earlier
    is_correct = _Judge(model)
    drawn = scores(_fit_width(newest, is_correct, min(num_correct, num_images - HALF_A_MISTAKE) / num_images))
    right = is_correct(drawn, labels)
    accuracies: list[Accuracies | None] = []
    for index in range(len(model.tasks) - 1):
        own = reader.learner.network.units(index)
        rows = (labels >= own.start) & (labels < own.stop)
        within = is_correct(drawn[rows][:, own], labels[rows], own)
        shares = (within.float().mean(), right[rows].float().mean())
        accuracies.append(Accuracies(*(100 * float(share) for share in shares)) if bool(rows.any()) else None)
    return accuracies


def _fit_width(drawn: Draws, is_correct: _Judge, wanted: float) -> float:
    """The width at which that share of the draws is classified correctly."""
    labels, scores = drawn
    low, high = map(log, WIDTHS)
    for _ in range(STEPS):
        middle = (low + high) / 2
        share = float(is_correct(scores(exp(middle)), labels).float().mean())
        low, high = (middle, high) if share > wanted else (low, middle)
    return exp((low + high) / 2)


def _draw(model: Model, reader: Reader, units: range) -> Draws | None:
    """The units of draws, and their log-probabilities by the width."""
    learner, num = reader.learner, max(1, min(NUM_DRAWS, MAX_DRAWS // max(len(model.units), 1)))
    labels = torch.tensor(units).repeat_interleave(num)
    generator = (Key(model.settings.seed) / "pseudo-features" / len(model.tasks) / units.start).generator()
    scores = learner.identity.draw(labels.to(reader.runtime.device), learner.network.sizes(), generator)
    if scores is None:
        return None
    return labels, lambda width: to_host(scores(width)).log_softmax(1)


class _Judge:
    """Whether draws are classified correctly; units of one class are summed."""

    def __init__(self, model: Model) -> None:
        self.owner, self.shares = unit_owners(model.units), unit_shares(model)

    def __call__(self, logs: Tensor, units: Tensor, among: slice = slice(None)) -> Tensor:
        owner = self.owner[among]
        probabilities = (logs + self.shares[among]).softmax(1)
        summed = torch.zeros(len(logs), len(self.owner)).index_add_(1, owner, probabilities)
        return summed.argmax(1) == self.owner[units]
