"""Chooses the lines of images that are searched for, and compares them with stored numbers.

A line is part of one row of an image (or, if rows have no contrast, of one column). Two lines are compared by the
absolute value of their correlation, so that an inverted image is found too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MARGIN = 4  # pixels that a shift may cut off on each side
MIN_CONTRAST, NOISE_CONTRAST = 1.0, 7.0  # standard deviation in steps of 255: to be searched; to be found under noise
LIKELY, CERTAIN = 0.92, 0.96  # minimum correlation of one line; of all lines that exist
LINE_NOISE, BLOCK_NOISE = 2.2, 1.7  # what may be left unexplained, in steps of 255 (noise of up to 2 leaves about 1.4)
ROUNDING = 0.3  # fraction of that noise that rounding to half precision causes


@dataclass(frozen=True)
class Probe:
    """One line of a block of pixels of one channel: a row of it or, with `upright`, a column."""

    image: int
    line: int
    other: int
    reverse: bool
    upright: bool
    noise: float  # fraction of the noise that it may contain
    block: Tensor  # [lines, pixels along a line]


class Lines:
    """The lines of all probes of one direction as tensors, to compare them at once."""

    def __init__(self, probes: list[Probe]) -> None:
        self.probes = probes
        self.lines = torch.stack([standardise(p.block[p.line]) for p in probes])
        self.least = torch.tensor([min_correlation(p.block[p.line], p.noise) for p in probes])
        self.others = torch.stack([standardise(p.block[p.other]) for p in probes])
        self.others_least = torch.tensor([min_correlation(p.block[p.other], p.noise) for p in probes])
        self.distances = torch.tensor([p.other - p.line for p in probes])
        self.length = self.lines.shape[1]
        self.scaled = self.lines / self.least[:, None]
        """A product above 1 or below -1 is a match."""


def choose_probes(index: int, image: Tensor) -> tuple[list[Probe], float]:
    """Choose the lines by which an image [c, h, w] is searched for; also return its contrast."""
    block, contrast = _choose_block(image)
    if contrast < MIN_CONTRAST:
        return [], contrast
    noise = 1.0 if contrast >= NOISE_CONTRAST else ROUNDING
    probes = _choose_lines(index, block, noise, upright=False) or _choose_lines(index, block, noise, upright=True)
    return probes, contrast


def _choose_block(image: Tensor) -> tuple[Tensor, float]:
    """Return the centre of the channel with the highest contrast, and that contrast."""
    middle = image.float()[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    if not middle.numel():
        return middle[0], 0.0
    contrasts = [float(remove_slopes(channel).std()) for channel in middle]
    best = max(range(len(contrasts)), key=contrasts.__getitem__)
    return middle[best], contrasts[best]


def _choose_lines(index: int, block: Tensor, noise: float, *, upright: bool) -> list[Probe]:
    """Choose the line with the highest contrast in each half of a block, in both directions."""
    probes: list[Probe] = []
    lines = block.T if upright else block
    half = len(lines) // 2
    for part in (range(half), range(half, len(lines))):
        contrast = lines.std(dim=1)
        line = part.start + int(contrast[part.start : part.stop].argmax()) if part else 0
        if not part or float(contrast[line]) < MIN_CONTRAST:
            continue
        contrast[max(line - 2, 0) : line + 3] = -1.0  # neighbours are too similar to be informative
        for reverse in (False, True):
            seen = (lines.flip(1) if reverse else lines).contiguous()
            probes.append(Probe(index, line, int(contrast.argmax()), reverse, upright, noise, seen))
    return probes


def min_correlation(line: Tensor, noise: float) -> float:
    """Return the lowest correlation with a line that noise can cause."""
    share = min(noise * LINE_NOISE / max(float(line.std()), 1e-12), 1.0)
    return max(LIKELY, math.sqrt(1 - share**2))


def match_block(numbers: Tensor, probe: Probe, start: int, along: int, across: int) -> float:
    """Return the correlation of a block around one of its lines, or 0.0; at the ends half a block is enough."""
    num_lines, length = probe.block.shape
    begins = start + (torch.arange(num_lines) - probe.line) * across
    there = (begins >= 0) & (begins + (length - 1) * along < len(numbers))
    if int(there.sum()) * 2 < num_lines:
        return 0.0
    at = begins[there][:, None] + along * torch.arange(length)
    stored, has_contrast = standardise_rows(numbers[at].flatten()[None])
    if not len(has_contrast):
        return 0.0
    mine, theirs = remove_slopes(stored.view(at.shape).double()), remove_slopes(probe.block[there].double())
    match = float(standardise(mine.flatten()) @ standardise(theirs.flatten()))
    unexplained = float(theirs.std()) * math.sqrt(1 - min(abs(match), 1.0) ** 2)
    return match if abs(match) > CERTAIN and unexplained < probe.noise * BLOCK_NOISE else 0.0


def remove_slopes(block: Tensor) -> Tensor:
    """Subtract the mean and the even gradients, which different pictures of a clear sky share."""
    for dim in (0, 1):
        ramp = torch.linspace(-1, 1, block.shape[dim]).unsqueeze(1 - dim)
        block = block - block.mean()
        block = block - ramp * (block * ramp).sum() / (ramp.square().sum() * block.shape[1 - dim]).clamp(min=1e-12)
    return block


def standardise(values: Tensor) -> Tensor:
    """Subtract the mean and scale to length 1."""
    centred: Tensor = values - values.mean()
    length: Tensor = torch.linalg.vector_norm(centred)
    return centred / length.clamp(min=1e-12)


def standardise_rows(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that have contrast, with mean 0 and length 1 in single precision, and their indices.

    The first number of each row is subtracted before anything is rounded, which preserves the contrast next to a large
    offset, and the row is divided by its largest number before anything is squared.
    """
    moved = windows - windows[:, :1]
    low, high = moved.aminmax(dim=1)
    scale = torch.maximum(high, -low).to(torch.promote_types(moved.dtype, torch.float32))
    usable = ((scale > 0) & scale.isfinite()).nonzero()[:, 0]
    if len(usable) < len(moved):
        moved, scale = moved[usable], scale[usable]
    moved = (moved / scale[:, None]).float()
    moved -= moved.mean(dim=1, keepdim=True)
    moved /= torch.linalg.vector_norm(moved, dim=1, keepdim=True)
    return moved, usable


def measure_columns(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns, each less its first number, and their lengths after subtraction of the mean.

    Columns without contrast have infinite length. Columns over lengths are what `standardise_rows` gives, at a fraction
    of the cost for numbers of ordinary size.
    """
    if windows.dtype == torch.float32:
        columns = windows - windows[:1]
        squares = columns.square().sum(dim=0)
        lengths = squares - columns.sum(dim=0).square_() / len(columns)
        is_exact = (lengths > 1e-3 * squares) & (squares > 1e-25) & (squares < 1e25)
        again = (~is_exact & (columns != 0).any(dim=0) if not is_exact.all() else ~is_exact).nonzero()[:, 0]
        lengths = torch.where(is_exact, lengths.sqrt(), torch.inf)
    else:
        columns = torch.zeros(windows.shape)
        lengths = torch.full(windows.shape[1:], torch.inf)
        again = torch.arange(len(lengths))
    if len(again):
        standard, usable = standardise_rows(windows[:, again].T)
        columns[:, again[usable]] = standard.T
        lengths[again[usable]] = 1.0
    return columns, lengths
