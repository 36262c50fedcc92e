"""What class statistics tell of earlier tasks, whose images are gone: pseudo-features drawn from their Gaussians.

    z = μ_c + s ε,    ε ~ N(0, Σ_c)

Gaussians of the features that were learned from are too narrow for new images: with s = 1 nearly all draws would be
classified correctly. So each task from the second on has its own width s, at which its draws are classified correctly
as often as its validation images are. Draws of earlier tasks have the geometric mean of all widths, weighted by the
number of mistakes, since a task without any could be much narrower. The first task alone has few classes to be mistaken
for, and would need widths that are much too large for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import NamedTuple

import torch
from torch import Tensor

from recollect.deploy.model import VALIDATION_SHARE, Accuracies, LearnedTask, Model
from recollect.deploy.reader import Reader, unit_owners, unit_shares
from recollect.device import to_host
from recollect.rng import Key

NUM_DRAWS, MAX_DRAWS = 50, 5_000  # of each unit; of all together
WIDTHS = (0.25, 16.0)
STEPS = 12  # of the search for a width, each of which halves the range of its logarithm
HALF_A_MISTAKE = 0.5
"""What a task without mistakes counts for."""
MIN_IMAGES = 10  # validation images of a task, below which they tell no width


class Drawn(NamedTuple):
    """Pseudo-features of earlier tasks, as the model classifies them."""

    across: Tensor
    """Uncalibrated log-probabilities over all units [n, units]."""
    units: Tensor
    """The unit that each was drawn for [n]."""
    accuracies: list[Accuracies | None]
    """Of each earlier task; None for tasks without classes."""


def fit_width(model: Model, reader: Reader, num_correct: int, num_images: int) -> float | None:
    """The width of the newest task, of whose validation images so many are classified correctly over all classes."""
    units = reader.learner.network.units(len(model.tasks) - 1)
    if num_images < MIN_IMAGES or not units.start:
        return None
    drawn = _draw(model, reader, range(units.start, units.stop))
    if drawn is None:
        return None
    labels, scores = drawn
    is_correct = _Judge(model)
    wanted = min(num_correct, num_images - HALF_A_MISTAKE) / num_images
    low, high = map(log, WIDTHS)
    for _ in range(STEPS):
        middle = (low + high) / 2
        share = float(is_correct(scores(exp(middle)), labels).float().mean())
        low, high = (middle, high) if share > wanted else (low, middle)
    return exp((low + high) / 2)


def draw_earlier_tasks(model: Model, reader: Reader) -> Drawn | None:
    """Draws of all tasks but the newest; None if there are none, or nothing tells how wide they are."""
    adapted = [index for index, task in enumerate(model.tasks) if task.adapted]
    width = _mean_width(model.tasks[adapted[0] if adapted else 0 :])
    num = reader.learner.network.units(len(model.tasks) - 1).start
    drawn = _draw(model, reader, range(num)) if num and width else None
    if drawn is None or width is None:
        return None
    units, scores = drawn
    across, is_correct = scores(width), _Judge(model)
    right = is_correct(across, units)
    accuracies: list[Accuracies | None] = []
    for index in range(len(model.tasks) - 1):
        own = reader.learner.network.units(index)
        rows = (units >= own.start) & (units < own.stop)
        within = is_correct(across[rows][:, own], units[rows], own)
        shares = (within.float().mean(), right[rows].float().mean())
        accuracies.append(Accuracies(*(100 * float(share) for share in shares)) if bool(rows.any()) else None)
    return Drawn(across, units, accuracies)


def _mean_width(tasks: Sequence[LearnedTask]) -> float | None:
    """Of tasks all learned before the first adaptation, or all since then: it changes how many networks read."""
    known = [task for task in tasks if task.width is not None]
    images = [VALIDATION_SHARE * sum(task.images.values()) for task in known]
    mistakes = [
        max(HALF_A_MISTAKE, (1 - (task.across or 0.0) / 100) * num) for task, num in zip(known, images, strict=True)
    ]
    widths = [log(task.width or 1.0) * num for task, num in zip(known, mistakes, strict=True)]
    return exp(sum(widths) / sum(mistakes)) if known else None


def _draw(model: Model, reader: Reader, units: range) -> tuple[Tensor, Callable[[float], Tensor]] | None:
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
