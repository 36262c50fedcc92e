"""A few augmented views of images, and what frozen functions say of each: run once, looked up ever after.

The views themselves are not stored, only how each image is moved; so a view costs the bytes of the functions' outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.place import to_device
from recollect.rng import Key
from recollect.streams.pixels import Moves, Pixels
from recollect.streams.split import Split

Functions = Mapping[str, Callable[[Tensor], Tensor]]
BATCH_SIZE = 256


@dataclass(frozen=True)
class Known:
    """Functions of a view that do not change while a phase trains, so that each view needs them only once."""

    functions: Functions
    views: int
    """Views of each image, shown in turn; 0 shows a fresh view every time and runs the functions on it."""
    most_bytes: int
    """What the outputs may take; as many views are kept as fit, and if not one does, views are fresh."""

    @torch.no_grad()
    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        """Run the functions."""
        return {name: function(x) for name, function in self.functions.items()}

    def num_that_fit(self, split: Split, pixels: Pixels, device: torch.device, *, beside: int = 0) -> int:
        """How many views of a split fit into the budget beside so many other images."""
        if not self.views or not len(split):
            return 0
        images, _ = split.take(torch.zeros(1, dtype=torch.int64))
        each = sum(output.nbytes for output in self(pixels.plain(images.to(device))).values())
        return min(self.views, max(0, self.most_bytes - beside * each) // (each * len(split)))


class Views:
    """So many augmented views of a split and, last of all, the plain one where asked for."""

    def __init__(
        self, split: Split, pixels: Pixels, known: Known, key: Key, num: int, device: torch.device, *, plain: bool
    ) -> None:
        self.split, self.pixels, self.device = split, pixels, device
        each = [pixels.draw(len(split), (key / view).generator()) for view in range(num)]
        each += [pixels.stay(len(split))] if plain else []
        self.moves = Moves(*map(torch.stack, zip(*each, strict=True))).to(device)  # [views, images]
        self.values: dict[str, Tensor] = {}
        for view in range(len(each)):
            for start in range(0, len(split), BATCH_SIZE):
                positions = torch.arange(start, min(start + BATCH_SIZE, len(split)))
                for name, output in known(self.shown(view, positions)).items():
                    if name not in self.values:
                        self.values[name] = output.new_empty(len(each), len(split), *output.shape[1:])
                    self.values[name][view, positions.to(device)] = output

    def __len__(self) -> int:
        return len(self.moves.tops)

    def shown(self, view: Tensor | int, positions: Tensor, images: Tensor | None = None) -> Tensor:
        """What networks see at `positions` in one view, or a view each; `images` if they are on the device already."""
        if images is None:
            images = to_device(self.split.take(positions)[0], self.device)
        moves = self.moves.at(view, to_device(positions, self.device))
        return self.pixels.plain(self.pixels.moved(images, moves))

    def known(self, view: Tensor | int, positions: Tensor) -> dict[str, Tensor]:
        """What the functions said of them."""
        positions = to_device(positions, self.device)
        return {name: values[view, positions] for name, values in self.values.items()}
