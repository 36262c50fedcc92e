"""Searches all stored numbers and bytes for given images.

A line of an image is compared with every stretch of numbers. Where the correlation is high, the neighbouring lines must
agree too, at any distance from one line to the next. `claims` lists what this finds and what it does not. Images of a
single colour or an even gradient cannot be searched for; those of low contrast are found only without noise. Sequences
are searched in chunks that overlap by more than an image, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recollect.audit.contents import read_contents
from recollect.audit.files import list_files
from recollect.audit.probes import (
    MIN_CONTRAST,
    NOISE_CONTRAST,
    Lines,
    Probe,
    choose_probes,
    match_block,
    measure_columns,
    standardise,
    standardise_rows,
)

PIXEL_STRIDES = (1, 3, 4)  # numbers from one pixel of a channel to the next: by channel, RGB, RGBA
EXACT = 0.985  # correlation of a line above which its neighbours are searched at other distances than the image's own
MAX_STARTS, MAX_NUMBERS, AT_ONCE = 1 << 15, 1 << 20, 512  # starts, numbers of all starts, and lines compared at a time
MAX_WIDTH = 1024  # pixels from one row to the next in a larger picture
CHUNK = 1 << 20  # numbers searched at a time
WIDE = {torch.int32, torch.uint32, torch.int64, torch.uint64, torch.float64}  # types that single precision may round


@dataclass(frozen=True)
class Finding:
    """An image that was found, and where."""

    image: int
    file: Path
    tensor: str
    offset: int
    mirrored: bool
    upside_down: bool
    inverted: bool


@dataclass(frozen=True)
class _Chunk:
    """Part of a sequence: lines that start between `begin` and `end` have all numbers of an image around them."""

    numbers: Tensor
    offset: int  # of the first number in the sequence
    begin: int
    end: int


class Searcher:
    """Searches for images [n, c, h, w] of bytes."""

    def __init__(self, images: Tensor) -> None:
        self.image_shape = channels, height, width = tuple(images.shape[1:])
        self.flat: list[int] = []
        """Images with too little contrast to be searched for."""
        self.faint: list[int] = []
        """Images with so little contrast that noise would hide them."""
        probes: list[Probe] = []
        for index, image in enumerate(images):
            chosen, contrast = choose_probes(index, image)
            probes += chosen
            if contrast < MIN_CONTRAST:
                self.flat.append(index)
            elif contrast < NOISE_CONTRAST:
                self.faint.append(index)
        by_way = {way: [probe for probe in probes if probe.upright == way] for way in (False, True)}
        self.lines = {way: Lines(chosen) for way, chosen in by_way.items() if chosen}
        self.strides = sorted({*PIXEL_STRIDES, channels})
        self.reach = height * max(width, MAX_WIDTH) * max(self.strides)

    def search_folder(self, folder: Path, progress: Callable[[Path], None] = lambda path: None) -> Iterator[Finding]:
        """Search all files of a folder; `progress` is called with each file before it is searched."""
        for path in list_files(folder):
            progress(path)
            for name, numbers in read_contents(path, self.image_shape):
                yield from self.search(numbers, path, name)

    def search(self, numbers: Tensor | Iterable[Tensor], path: Path, name: str) -> Iterator[Finding]:
        """Search a sequence of numbers, given in one tensor or in pieces; each image is found at most once."""
        seen: set[int] = set()
        for chunk in _split_chunks([numbers] if isinstance(numbers, Tensor) else numbers, self.reach):
            for stride in self.strides:
                for upright in self.lines:
                    along = self.image_shape[2] * stride if upright else stride
                    for probe, start, across in self._find_candidates(chunk, upright, stride):
                        match = 0.0
                        if probe.image not in seen:
                            match = match_block(chunk.numbers, probe, start, along, across)
                        if match:
                            seen.add(probe.image)
                            mirrored, upside_down = (across < 0, probe.reverse)[:: 1 if upright else -1]
                            at = chunk.offset + start
                            yield Finding(probe.image, path, name, at, mirrored, upside_down, match < 0)

    def _find_candidates(self, chunk: _Chunk, upright: bool, stride: int) -> Iterator[tuple[Probe, int, int]]:
        """Yield probes, positions where one of their lines seems to be, and distances to the next line."""
        row = self.image_shape[2] * stride
        along, usual = (row, stride) if upright else (stride, row)
        lines = self.lines[upright]
        span = (lines.length - 1) * along + 1
        num_starts = min(MAX_STARTS, max(MAX_NUMBERS // lines.length, 1))
        last = min(chunk.end, len(chunk.numbers) - span + 1)
        for begin in range(chunk.begin, last, num_starts):
            part = chunk.numbers[begin : min(begin + num_starts, last) + span - 1]
            if part.min() == part.max():
                continue
            columns, lengths = measure_columns(part.as_strided((lines.length, len(part) - span + 1), (along, 1)))
            for first in range(0, len(lines.probes), AT_ONCE):
                match = (lines.scaled[first : first + AT_ONCE] @ columns).abs_()
                places = (match.amax(dim=0) > lengths).nonzero()[:, 0]
                chosen = match[:, places] / lengths[places]
                which, where = (chosen > 1).nonzero().unbind(1)
                exact = chosen[which, where] * lines.least[first + which] > EXACT
                yield from self._check_candidates(
                    chunk.numbers, upright, first + which, begin + places[where], exact, along, usual
                )

    def _check_candidates(
        self, numbers: Tensor, upright: bool, which: Tensor, starts: Tensor, exact: Tensor, along: int, usual: int
    ) -> Iterator[tuple[Probe, int, int]]:
        """Yield those candidates whose second line is where it should be."""
        probes = self.lines[upright].probes
        for across in (usual, -usual):
            fits = _match_second_lines(numbers, self.lines[upright], which, starts, along, across)
            for i, start in zip(which[fits].tolist(), starts[fits].tolist(), strict=True):
                yield probes[i], start, across
        if not upright:
            for i, start in zip(which[exact].tolist(), starts[exact].tolist(), strict=True):
                for across in _find_line_distances(numbers, probes[i], start, along):
                    yield probes[i], start, across


def _match_second_lines(
    numbers: Tensor, lines: Lines, which: Tensor, starts: Tensor, along: int, across: int
) -> Tensor:
    """Return for which starts another line of the block is where it should be, or would be outside the numbers."""
    begins = starts + lines.distances[which] * across
    there = (begins >= 0) & (begins + (lines.length - 1) * along < len(numbers))
    windows, usable = standardise_rows(numbers[(begins * there)[:, None] + along * torch.arange(lines.length)])
    match = torch.zeros(len(which))
    match[usable] = (windows * lines.others[which[usable]]).sum(dim=1).abs()
    return (match > lines.others_least[which]) | ~there


def _find_line_distances(numbers: Tensor, probe: Probe, start: int, along: int) -> list[int]:
    """Return the distances, in both directions, at which the next line agrees best, as in a larger picture."""
    length = probe.block.shape[1]
    ahead = 1 if probe.line + 1 < len(probe.block) else -1
    line = standardise(probe.block[probe.line + ahead])
    distances: list[int] = []
    for way in (1, -1):
        nearest, farthest = sorted((start + way * length * along, start + way * MAX_WIDTH * along))
        low = max(nearest, 0)
        part = numbers[low : max(farthest, 0) + (length - 1) * along + 1]
        if len(part) <= (length - 1) * along:
            continue
        windows, usable = standardise_rows(part.as_strided((len(part) - (length - 1) * along, length), (1, along)))
        score = (windows @ line).abs()
        values, at = score.topk(min(3, len(score)))
        distances += [(low + int(usable[row]) - start) * ahead for row in at[values > EXACT].tolist()]
    return distances


def _split_chunks(pieces: Iterable[Tensor], reach: int) -> Iterator[_Chunk]:
    """Split a sequence into parts that overlap by `reach` numbers on both sides; constant parts are left out."""
    held: list[Tensor] = []
    offset = begin = end = 0  # of the numbers in memory, of those not searched yet, and of those that were read
    for piece in pieces:
        held.append(piece.flatten())
        end += piece.numel()
        if end < begin + CHUNK + reach:
            continue
        numbers = held[0] if len(held) == 1 else torch.cat(held)
        while end >= begin + CHUNK + reach:
            yield from _make_chunk(numbers[: begin + CHUNK + reach - offset], offset, begin, begin + CHUNK)
            begin += CHUNK
            drop = max(begin - reach - offset, 0)
            numbers, offset = numbers[drop:], offset + drop
        held = [numbers.clone()]  # frees the memory of what was read
    if end > begin:
        yield from _make_chunk(torch.cat(held), offset, begin, end)


def _make_chunk(numbers: Tensor, offset: int, begin: int, end: int) -> Iterator[_Chunk]:
    if not _is_constant(numbers):
        yield _Chunk(_to_subtractable(numbers), offset, begin - offset, end - offset)


def _is_constant(numbers: Tensor) -> bool:
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[numbers.dtype.itemsize]
    as_integers = numbers.contiguous().view(same_size)
    return bool((as_integers == as_integers[0]).all())


def _to_subtractable(numbers: Tensor) -> Tensor:
    """Convert numbers to a type that can be subtracted, without rounding; what is not finite becomes 0."""
    if numbers.dtype in WIDE:
        wide = numbers.view(torch.int64) if numbers.dtype == torch.uint64 else numbers  # differences wrap around
        wide = wide.double() if wide.dtype == torch.uint32 else wide
        narrow = wide.float()
        if not torch.equal(narrow.to(wide.dtype), wide):
            return wide if not wide.is_floating_point() else torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
        numbers = narrow
    return torch.nan_to_num(numbers.float(), nan=0.0, posinf=0.0, neginf=0.0)
