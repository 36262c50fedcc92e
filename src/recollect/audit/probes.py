"""The lines of images that are searched for, and comparing them with stored numbers.

A line is a piece of one row (or, where rows have no contrast, column) of an image. Two lines are compared less their
means and over their lengths; the sign of their correlation is left out, so that an inverted image is found too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MARGIN = 4  # pixels that a shift may cut off on each side
LEAST_CONTRAST, NOISE_CONTRAST = 1.0, 7.0  # standard deviation in steps of 255: to be searched; to be found under noise
LIKELY, CERTAIN = 0.92, 0.96  # least correlation of one line; of all lines that are there
LINE_NOISE, BLOCK_NOISE = 2.2, 1.7  # what may be left unexplained, in steps of 255 (noise of up to 2 leaves about 1.4)
ROUNDING = 0.3  # share of that noise that rounding to half precision makes


@dataclass(frozen=True)
class Probe:
    """One line of a block of pixels of one channel: a row of it or, with `upright`, a column."""

    image: int
    line: int
    other: int
    reverse: bool
    upright: bool
    noise: float  # share of the noise that may be in it
    block: Tensor  # [lines, pixels along a line]


class Lines:
    """The lines of all probes of one direction, as tensors, to be compared at once."""

    def __init__(self, probes: list[Probe]) -> None:
        self.probes = probes
        self.lines = torch.stack([standardise(p.block[p.line]) for p in probes])
        self.least = torch.tensor([least_match(p.block[p.line], p.noise) for p in probes])
        self.others = torch.stack([standardise(p.block[p.other]) for p in probes])
        self.others_least = torch.tensor([least_match(p.block[p.other], p.noise) for p in probes])
        self.distances = torch.tensor([p.other - p.line for p in probes])
        self.length = self.lines.shape[1]
        self.scaled = self.lines / self.least[:, None]
        """A product with it beyond 1 or -1 is a match."""


def choose_probes(index: int, image: Tensor) -> tuple[list[Probe], float]:
    """The lines to search for an image [c, h, w] by, and its contrast."""
    block, contrast = _choose_block(image)
    if contrast < LEAST_CONTRAST:
        return [], contrast
    noise = 1.0 if contrast >= NOISE_CONTRAST else ROUNDING
    probes = _choose_lines(index, block, noise, upright=False) or _choose_lines(index, block, noise, upright=True)
    return probes, contrast


def _choose_block(image: Tensor) -> tuple[Tensor, float]:
    """The middle of the channel of most contrast, and that contrast."""
    middle = image.float()[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    if not middle.numel():
        return middle[0], 0.0
    contrasts = [float(remove_slopes(channel).std()) for channel in middle]
    best = max(range(len(contrasts)), key=contrasts.__getitem__)
    return middle[best], contrasts[best]


def _choose_lines(index: int, block: Tensor, noise: float, *, upright: bool) -> list[Probe]:
    """The two lines of most contrast in a block, one in each half, both ways round."""
    found: list[Probe] = []
    lines = block.T if upright else block
    half = len(lines) // 2
    for part in (range(half), range(half, len(lines))):
        contrast = lines.std(dim=1)
        line = part.start + int(contrast[part.start : part.stop].argmax()) if part else 0
        if not part or float(contrast[line]) < LEAST_CONTRAST:
            continue
        contrast[max(line - 2, 0) : line + 3] = -1.0  # neighbours are too alike to tell anything
        for reverse in (False, True):
            seen = (lines.flip(1) if reverse else lines).contiguous()
            found.append(Probe(index, line, int(contrast.argmax()), reverse, upright, noise, seen))
    return found


def least_match(line: Tensor, noise: float) -> float:
    """The correlation with a line that noise leaves at least."""
    share = min(noise * LINE_NOISE / max(float(line.std()), 1e-12), 1.0)
    return max(LIKELY, math.sqrt(1 - share**2))


def match_block(numbers: Tensor, probe: Probe, start: int, along: int, across: int) -> float:
    """The correlation of a block around one of its lines, 0.0 if it is not there; at the ends half of it is enough."""
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
    """Without its mean and its even slopes, in which one clear sky is like another."""
    for dim in (0, 1):
        ramp = torch.linspace(-1, 1, block.shape[dim]).unsqueeze(1 - dim)
        block = block - block.mean()
        block = block - ramp * (block * ramp).sum() / (ramp.square().sum() * block.shape[1 - dim]).clamp(min=1e-12)
    return block


def standardise(values: Tensor) -> Tensor:
    """Without mean, of length 1."""
    centred: Tensor = values - values.mean()
    length: Tensor = torch.linalg.vector_norm(centred)
    return centred / length.clamp(min=1e-12)


def standardise_rows(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that have contrast, without mean and of length 1 in single precision, and which rows those are.

    Each row loses its first number before anything is rounded, which keeps the contrast beside a large offset, and is
    divided by its largest number before anything is squared.
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
    """Columns less one number each in single precision, and their lengths without mean; no contrast: infinite.

    What `standardise_rows` gives, but for a division, at a fraction of its cost on numbers of ordinary size.
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
