"""From stored uint8 images to what networks see: crop and flip drawn for each image, then (x/255 - mean) / std.

All draws come from a host generator, so every device sees the same views.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from recollect.device import to_device


class Moves(NamedTuple):
    """How each image is cropped and whether it is mirrored; one row an image."""

    tops: Tensor
    lefts: Tensor
    mirrored: Tensor

    def at(self, *where: Tensor | int) -> Moves:
        """The moves of some images."""
        return Moves(*(rows[where] for rows in self))

    def to(self, device: torch.device) -> Moves:
        return Moves(*(to_device(rows, device) for rows in self))


@dataclass(frozen=True)
class Pixels:
    """A stream's normalisation constants and augmentation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 4
    """Pixels of black border for the random crop; 0 for none."""
    flip: bool = True
    """Whether a mirrored image is still of its class."""

    def normalise(self, images: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Normalised, unaugmented."""
        scale, shift = _constants(self, images.device)
        return images.float().mul_(scale).sub_(shift)

    def draw(self, num: int, rng: torch.Generator) -> Moves:
        """A random crop and a coin-flip mirror for each of so many images."""
        tops, lefts = torch.randint(0, 2 * self.padding + 1, (2, num), generator=rng)
        mirrored = torch.rand(num, generator=rng) < 0.5 if self.flip else torch.zeros(num, dtype=torch.bool)
        return Moves(tops, lefts, mirrored)

    def no_moves(self, num: int) -> Moves:
        """Moves that leave so many images as they are."""
        centre = torch.full((num,), self.padding)
        return Moves(centre, centre, torch.zeros(num, dtype=torch.bool))

    def crop_and_flip(self, images: UInt8[Tensor, "b c h w"], moves: Moves) -> UInt8[Tensor, "b c h w"]:
        """The augmentation alone, on uint8."""
        b, channels, height, width = images.shape
        tops, lefts, mirrored = moves.to(images.device)
        rows = tops[:, None] + torch.arange(height, device=images.device)  # [b, h]
        columns = lefts[:, None] + torch.arange(width, device=images.device)  # [b, w]
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        padded = F.pad(images, (self.padding,) * 4)
        at = (padded.shape[3] * rows[:, :, None] + columns[:, None, :]).reshape(b, 1, -1)  # [b, 1, h*w]
        return padded.flatten(2).gather(2, at.expand(-1, channels, -1)).reshape(b, channels, height, width)


@lru_cache(maxsize=16)
def _constants(pixels: Pixels, device: torch.device) -> tuple[Tensor, Tensor]:
    """1 / (255 std) and mean / std, copied to a device once."""
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (pixels.mean, pixels.std))
    return 1 / (255 * std), mean / std
