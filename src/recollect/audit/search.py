"""Is this image in there? Given images are searched in all stored numbers and bytes, whatever was done to them.

A piece of one row (or, where rows have no contrast, column) of an image, less its mean and over its length, is compared
with every stretch of numbers; where the correlation is high the rows beside it must agree too. That finds an image
stored as bytes or as floats of any scale and offset (so also normalised ones), channel by channel or pixel by pixel, at
any place in a longer line of numbers, mirrored, shifted by a few pixels or with a little noise. It does not find what
was compressed, encrypted, turned upside down, rotated or blurred, a window of a wider picture, nor images of little
contrast or of nothing but an even slope of brightness.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.audit.inventory import tensors_of
from recollect.errors import UserError
from recollect.streams.images import SUFFIXES, decode_image

MARGIN = 4  # pixels that a shift may cut off on each side
LEAST_CONTRAST = 6.0  # standard deviation of the searched piece, in steps of 255
LIKELY, CERTAIN = 0.95, 0.97  # correlation of one row; of all rows that are there
STRETCH = 1 << 17  # numbers compared at a time


@dataclass(frozen=True)
class Finding:
    """An image that was found, and where."""

    image: int
    file: Path
    tensor: str
    offset: int
    mirrored: bool


@dataclass(frozen=True)
class _Probe:
    """One line of a block of pixels of one channel: a row of it or, with `upright`, a column."""

    image: int
    line: int
    mirrored: bool
    upright: bool
    block: Tensor  # [lines, pixels along a line]


class Searcher:
    """Prepared to look for images [n, c, h, w] of bytes."""

    def __init__(self, images: Tensor) -> None:
        self.channels, self.width = images.shape[1], images.shape[3]
        self.flat: list[int] = []
        """Images with too little contrast to be searched for."""
        probes: list[_Probe] = []
        for index, image in enumerate(images):
            found = list(_probes_of(index, image, upright=False)) or list(_probes_of(index, image, upright=True))
            probes += found
            if not found:
                self.flat.append(index)
        self.probes = {way: [probe for probe in probes if probe.upright == way] for way in (False, True)}
        self.lines = {
            way: torch.stack([_standard(probe.block[probe.line]) for probe in each])
            for way, each in self.probes.items()
            if each
        }

    def search_folder(self, folder: Path) -> Iterator[Finding]:
        """All tensors of all files, as numbers, and all files, as bytes."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if path.suffix == ".safetensors":
                for name, tensor in tensors_of(path):
                    yield from self.search(tensor.flatten().float(), path, name)
            data = path.read_bytes()
            if data:
                numbers = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                yield from self.search(numbers.float(), path, "(bytes of the file)")

    def search(self, numbers: Tensor, path: Path, name: str) -> Iterator[Finding]:
        """Every image at most once in a line of numbers."""
        numbers = torch.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)
        seen: set[int] = set()
        for pixel in {1, self.channels}:  # numbers from one pixel of a channel to the next
            for upright in self.lines:
                along, across = (self.width * pixel, pixel) if upright else (pixel, self.width * pixel)
                for probe, start in self._likely(numbers, upright, along):
                    if probe.image not in seen and _agrees(numbers, probe, start, along, across):
                        seen.add(probe.image)
                        yield Finding(probe.image, path, name, start, probe.mirrored)

    def _likely(self, numbers: Tensor, upright: bool, along: int) -> Iterator[tuple[_Probe, int]]:
        """Probes and places where one line of it seems to lie."""
        lines = self.lines[upright]
        length = lines.shape[1]
        span = (length - 1) * along + 1
        sums = torch.ones(1, 1, length)
        for begin in range(0, len(numbers) - span + 1, STRETCH):
            part = numbers[begin : begin + STRETCH + span - 1][None, None]
            part = part - part.mean()
            mean = F.conv1d(part, sums, dilation=along)[0] / length
            square = F.conv1d(part.square(), sums, dilation=along)[0] / length
            deviation = (square - mean.square()).clamp(min=0).sqrt()[0]
            usable = deviation > 1e-6 * part.abs().max().clamp(min=1e-12)
            product = F.conv1d(part, lines[:, None], dilation=along)[0]  # lines have no mean
            match = product / (deviation.clamp(min=1e-12) * length**0.5)
            for which, where in ((match > LIKELY) & usable).nonzero().tolist():
                yield self.probes[upright][which], begin + where


def _agrees(numbers: Tensor, probe: _Probe, start: int, along: int, across: int) -> bool:
    """Whether the lines around are there too; at a tensor's ends half of them are enough."""
    num_lines, length = probe.block.shape
    begins = start + (torch.arange(num_lines) - probe.line) * across
    there = (begins >= 0) & (begins + (length - 1) * along < len(numbers))
    if int(there.sum()) * 2 < num_lines:
        return False
    at = begins[there][:, None] + along * torch.arange(length)
    mine, theirs = _detrended(numbers[at]), _detrended(probe.block[there])
    return float(_standard(mine.flatten()) @ _standard(theirs.flatten())) > CERTAIN


def _probes_of(index: int, image: Tensor, *, upright: bool) -> Iterator[_Probe]:
    """The two lines of most contrast in the middle of an image, one in each half, both ways round."""
    block = image[len(image) // 2].float()[MARGIN:-MARGIN, MARGIN:-MARGIN]
    if float(_detrended(block).std()) < LEAST_CONTRAST:
        return
    for mirrored in (False, True):
        seen = block.flip(1) if mirrored else block
        lines = seen.T if upright else seen
        half = len(lines) // 2
        for part in (range(half), range(half, len(lines))):
            contrast = lines[part.start : part.stop].std(dim=1)
            if float(contrast.max()) >= LEAST_CONTRAST:
                line = part.start + int(contrast.argmax())
                yield _Probe(index, line, mirrored, upright, lines.contiguous())


def _detrended(block: Tensor) -> Tensor:
    """Without its mean and its even slopes, in which one clear sky is like another."""
    for dim in (0, 1):
        ramp = torch.linspace(-1, 1, block.shape[dim]).unsqueeze(1 - dim)
        block = block - block.mean()
        block = block - ramp * (block * ramp).sum() / (ramp.square().sum() * block.shape[1 - dim]).clamp(min=1e-12)
    return block


def _standard(values: Tensor) -> Tensor:
    """Without mean, of length 1."""
    centred: Tensor = values - values.mean()
    length: Tensor = torch.linalg.vector_norm(centred)
    return centred / length.clamp(min=1e-12)


def read_images(folder: Path, image_shape: Sequence[int]) -> tuple[list[Path], Tensor]:
    """All picture files under a folder as bytes [n, c, h, w], made to the size that a run learned from."""
    channels, height, width = image_shape
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise UserError(f"there are no images under {folder}; give a folder of the images to look for")
    images = []
    for path in paths:
        picture = torch.from_numpy(decode_image(io.BytesIO(path.read_bytes()), str(path)))
        if picture.shape[1:] != (height, width):
            picture = torch.from_numpy(decode_image(io.BytesIO(path.read_bytes()), str(path), height))
        images.append(picture if channels > 1 else picture.float().mean(dim=0, keepdim=True).round().to(torch.uint8))
    return paths, torch.stack(images)
