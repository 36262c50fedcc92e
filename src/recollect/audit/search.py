"""Is this image in there? Given images are searched in all stored numbers and bytes, whatever was done to them.

A piece of one row (or, where rows have no contrast, column) of an image, less its mean and over its length, is compared
with every stretch of numbers; where the correlation is high the rows beside it must agree too, at any distance from one
row to the next. That finds an image stored as bytes or as numbers of any scale and offset (so also normalised ones),
channel by channel or pixel by pixel, at any place in a longer line of numbers or inside a larger picture, mirrored,
upside down, shifted by a few pixels or with a little noise; and picture files as they decode. It does not find what was
otherwise compressed, encrypted, turned by 90 degrees, blurred or resized, nor images of one colour or of nothing but an
even slope of brightness; images of little contrast are found only without noise.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recollect.audit.inventory import KNOWN_FILES, stores_of, tensors_of
from recollect.errors import UserError
from recollect.streams.images import SUFFIXES, decode_image

MARGIN = 4  # pixels that a shift may cut off on each side
LEAST_CONTRAST, NOISE_CONTRAST = 1.0, 7.0  # standard deviation in steps of 255: to be searched; to be found under noise
LIKELY, CERTAIN = 0.92, 0.96  # least correlation of one line; of all lines that are there
LINE_NOISE, BLOCK_NOISE = 2.2, 1.7  # what may be left unexplained, in steps of 255 (noise of up to 2 leaves about 1.4)
ROUNDING = 0.3  # share of that noise that rounding to half precision makes
EXACT = 0.985  # correlation of one line, for the lines around to be looked for at other distances than the image's own
STRETCH, AT_ONCE = 1 << 15, 512  # places and lines compared at a time
WIDEST = 1024  # pixels from one row to the next in a larger picture


@dataclass(frozen=True)
class Finding:
    """An image that was found, and where."""

    image: int
    file: Path
    tensor: str
    offset: int
    mirrored: bool
    upside_down: bool


@dataclass(frozen=True)
class _Probe:
    """One line of a block of pixels of one channel: a row of it or, with `upright`, a column."""

    image: int
    line: int
    other: int
    reverse: bool
    upright: bool
    noise: float  # share of the noise that may be in it
    block: Tensor  # [lines, pixels along a line]


class Searcher:
    """Prepared to look for images [n, c, h, w] of bytes."""

    def __init__(self, images: Tensor) -> None:
        self.channels, self.height, self.width = images.shape[1:]
        self.flat: list[int] = []
        """Images with too little contrast to be searched for."""
        self.faint: list[int] = []
        """Images with so little contrast that noise would hide them."""
        probes: list[_Probe] = []
        for index, image in enumerate(images):
            block, contrast = _block_of(image)
            noise = 1.0 if contrast >= NOISE_CONTRAST else ROUNDING
            if contrast < LEAST_CONTRAST:
                self.flat.append(index)
                continue
            if noise < 1.0:
                self.faint.append(index)
            probes += _probes_of(index, block, noise, upright=False) or _probes_of(index, block, noise, upright=True)
        self.probes = {way: [probe for probe in probes if probe.upright == way] for way in (False, True)}
        used = [way for way, each in self.probes.items() if each]
        self.lines = {way: torch.stack([_standard(p.block[p.line]) for p in self.probes[way]]) for way in used}
        self.likely = {way: torch.tensor([_least(p.block[p.line], p.noise) for p in self.probes[way]]) for way in used}
        self.others = {
            way: (
                torch.stack([_standard(p.block[p.other]) for p in self.probes[way]]),
                torch.tensor([p.other - p.line for p in self.probes[way]]),
                torch.tensor([_least(p.block[p.other], p.noise) for p in self.probes[way]]),
            )
            for way in used
        }

    def search_folder(self, folder: Path, progress: Callable[[Path], None] = lambda path: None) -> Iterator[Finding]:
        """All tensors of all files, as numbers and as bytes, and all other files as bytes; tells of each file begun."""
        for path in files_of(folder):
            progress(path)
            for name, numbers in (*_contents(path), *self._as_picture(path)):
                yield from self.search(numbers, path, name)

    def _as_picture(self, path: Path) -> Iterator[tuple[str, Tensor]]:
        """What a picture file shows, in its own size and in that of the images."""
        if path.suffix == ".safetensors" or path.name in KNOWN_FILES:
            return
        try:
            yield "(the picture)", _sized(path, (self.channels, self.height, self.width))
            yield "(the picture in its own size)", _shown(path, self.channels)
        except UserError:  # no picture: it was searched as bytes
            return

    def search(self, numbers: Tensor, path: Path, name: str) -> Iterator[Finding]:
        """Every image at most once in a line of numbers."""
        numbers = torch.nan_to_num(numbers.flatten().float(), nan=0.0, posinf=0.0, neginf=0.0)
        seen: set[int] = set()
        for pixel in {1, self.channels}:  # numbers from one pixel of a channel to the next
            for upright in self.lines:
                along = self.width * pixel if upright else pixel
                for probe, start, across in self._likely(numbers, upright, pixel):
                    if probe.image not in seen and _agrees(numbers, probe, start, along, across):
                        seen.add(probe.image)
                        mirrored, upside_down = (across < 0, probe.reverse)[:: 1 if upright else -1]
                        yield Finding(probe.image, path, name, start, mirrored, upside_down)

    def _likely(self, numbers: Tensor, upright: bool, pixel: int) -> Iterator[tuple[_Probe, int, int]]:
        """Probes, places where a line of it seems to lie, and distances from there to the next line."""
        row = self.width * pixel
        along, usual = (row, pixel) if upright else (pixel, row)
        lines, probes = self.lines[upright], self.probes[upright]
        length = lines.shape[1]
        span = (length - 1) * along + 1
        for begin in range(0, len(numbers) - span + 1, STRETCH):
            part = numbers[begin : begin + STRETCH + span - 1]
            windows = part.as_strided((len(part) - span + 1, length), (1, along)).contiguous()
            windows -= windows.mean(dim=1, keepdim=True)
            norms = torch.linalg.vector_norm(windows, dim=1)
            usable = (norms > 1e-5 * part[: len(windows)].abs()).nonzero()[:, 0]  # more than rounding
            windows = windows[usable] / norms[usable, None]
            for first in range(0, len(lines), AT_ONCE):
                match = windows @ lines[first : first + AT_ONCE].T
                where, which = (match > self.likely[upright][first : first + AT_ONCE]).nonzero().unbind(1)
                starts, found = begin + usable[where], which + first
                for across in (usual, -usual):
                    fits = self._second_line_fits(numbers, upright, found, starts, along, across)
                    for i, start in zip(found[fits].tolist(), starts[fits].tolist(), strict=True):
                        yield probes[i], start, across
                exact = match[where, which] > EXACT
                if not upright:
                    for i, start in zip(found[exact].tolist(), starts[exact].tolist(), strict=True):
                        for across in _steps(numbers, probes[i], start, along):
                            yield probes[i], start, across

    def _second_line_fits(
        self, numbers: Tensor, upright: bool, which: Tensor, starts: Tensor, along: int, across: int
    ) -> Tensor:
        """For which of the places another line of the block lies where it should, or would lie beyond the ends."""
        others, distances, least = self.others[upright]
        begins = starts + distances[which] * across
        there = (begins >= 0) & (begins + (others.shape[1] - 1) * along < len(numbers))
        windows = numbers[(begins * there)[:, None] + along * torch.arange(others.shape[1])]
        windows = windows - windows.mean(dim=1, keepdim=True)
        norms = torch.linalg.vector_norm(windows, dim=1).clamp(min=1e-12)
        fits: Tensor = (windows * others[which]).sum(dim=1) / norms > least[which]
        return fits | ~there


def files_of(folder: Path) -> list[Path]:
    """What is searched under a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _contents(path: Path) -> Iterator[tuple[str, Tensor]]:
    """What a file holds as lines of numbers; the free slots of a store apart from its samples."""
    if path.suffix != ".safetensors":
        data = path.read_bytes()
        if data:
            yield "(bytes of the file)", torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return
    sizes = {f"{store.name}.images": len(store) for store in stores_of(path)}
    for name, tensor in tensors_of(path):
        num = sizes.get(name)
        if num is None:
            yield name, tensor
        else:
            yield name, tensor[:num]
            yield f"{name} (free slots)", tensor[num:]
        if tensor.dtype != torch.uint8 and tensor.numel():
            yield f"{name} (its bytes)", tensor.contiguous().flatten().view(torch.uint8)


def _agrees(numbers: Tensor, probe: _Probe, start: int, along: int, across: int) -> bool:
    """Whether a block lies around one of its lines; at a tensor's ends half of its lines are enough."""
    num_lines, length = probe.block.shape
    begins = start + (torch.arange(num_lines) - probe.line) * across
    there = (begins >= 0) & (begins + (length - 1) * along < len(numbers))
    if int(there.sum()) * 2 < num_lines:
        return False
    at = begins[there][:, None] + along * torch.arange(length)
    mine, theirs = _detrended(numbers[at].double()), _detrended(probe.block[there].double())
    match = float(_standard(mine.flatten()) @ _standard(theirs.flatten()))
    unexplained = float(theirs.std()) * math.sqrt(1 - min(match, 1.0) ** 2)
    return match > CERTAIN and unexplained < probe.noise * BLOCK_NOISE


def _least(line: Tensor, noise: float) -> float:
    """The correlation with a line that noise leaves at least."""
    share = min(noise * LINE_NOISE / max(float(line.std()), 1e-12), 1.0)
    return max(LIKELY, math.sqrt(1 - share**2))


def _steps(numbers: Tensor, probe: _Probe, start: int, along: int) -> list[int]:
    """The distances from line to line, both ways, at which the next line agrees best, as in a larger picture."""
    length = probe.block.shape[1]
    ahead = 1 if probe.line + 1 < len(probe.block) else -1
    line = _standard(probe.block[probe.line + ahead])
    found: list[tuple[float, int]] = []
    for way in (1, -1):
        nearest, farthest = sorted((start + way * length * along, start + way * WIDEST * along))
        low = max(nearest, 0)
        part = numbers[low : farthest + (length - 1) * along + 1]
        if len(part) <= (length - 1) * along:
            continue
        windows = part.as_strided((len(part) - (length - 1) * along, length), (1, along))
        centred = windows - windows.mean(dim=1, keepdim=True)
        score = centred @ line / torch.linalg.vector_norm(centred, dim=1).clamp(min=1e-12)
        best = score.topk(min(3, len(score)))
        found += [
            (value, (low + at - start) * ahead) for value, at in zip(best[0].tolist(), best[1].tolist(), strict=True)
        ]
    return [step for value, step in found if value > EXACT]


def _block_of(image: Tensor) -> tuple[Tensor, float]:
    """The middle of the channel of most contrast, and that contrast."""
    middle = image.float()[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    if not middle.numel():
        return middle[0], 0.0
    contrasts = [float(_detrended(channel).std()) for channel in middle]
    best = max(range(len(contrasts)), key=contrasts.__getitem__)
    return middle[best], contrasts[best]


def _probes_of(index: int, block: Tensor, noise: float, *, upright: bool) -> list[_Probe]:
    """The two lines of most contrast in a block, one in each half, both ways round."""
    found: list[_Probe] = []
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
            found.append(_Probe(index, line, int(contrast.argmax()), reverse, upright, noise, seen))
    return found


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
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise UserError(f"there are no images under {folder}; give a folder of the images to look for")
    return paths, torch.stack([_sized(path, image_shape) for path in paths])


def _sized(path: Path, image_shape: Sequence[int]) -> Tensor:
    """A picture file as bytes [c, h, w]; its middle square resized where it has another size."""
    channels, height, width = image_shape
    picture = _shown(path, channels)
    return picture if picture.shape[1:] == (height, width) else _shown(path, channels, height)


def _shown(path: Path, channels: int, size: int | None = None) -> Tensor:
    picture = torch.from_numpy(decode_image(io.BytesIO(path.read_bytes()), str(path), size))
    return picture if channels > 1 else picture.float().mean(dim=0, keepdim=True).round().to(torch.uint8)
