"""The feature cache: outputs of frozen functions for a few augmented views of each image, computed once per phase.

The views themselves are not stored, only how each image is cropped and flipped: a view costs the bytes of the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recollect.device import reading_batch_size, to_device
from recollect.methods import CachedFunctions
from recollect.rng import Key
from recollect.streams import Moves, Pixels, Samples, Split, augment, split_rows


def num_views_that_fit(
    cached: CachedFunctions, split: Split, pixels: Pixels, device: torch.device, *, num_other_images: int = 0
) -> int:
    """How many views of a split fit into the budget, together with one view of so many other images."""
    if not cached.views or not len(split):
        return 0
    images, _ = split.take(torch.zeros(1, dtype=torch.int64))
    bytes_per_view = sum(output.nbytes for output in cached(pixels.normalise(images.to(device))).values())
    available = max(0, cached.max_bytes - num_other_images * bytes_per_view)
    return min(cached.views, available // (bytes_per_view * len(split)))


class FeatureCache:
    """`num_views` augmented views of a split and, if `plain`, the unaugmented one as the last."""

    def __init__(
        self,
        split: Split,
        pixels: Pixels,
        cached: CachedFunctions,
        key: Key,
        num_views: int,
        device: torch.device,
        *,
        plain: bool,
    ) -> None:
        self.split, self.pixels, self.device = split, pixels, device
        moves = [pixels.draw(len(split), (key / view).generator()) for view in range(num_views)]
        moves += [pixels.no_moves(len(split))] if plain else []
        self.moves = Moves(*map(torch.stack, zip(*moves, strict=True))).to(device)  # [views, images]
        self.values: dict[str, Tensor] = {}
        for view in range(len(moves)):
            for positions in split_rows(torch.arange(len(split)), reading_batch_size(split.images, device)):
                for name, output in cached(self.show(view, positions)).items():
                    if name not in self.values:
                        self.values[name] = output.new_empty(len(moves), len(split), *output.shape[1:])
                    self.values[name][view, positions.to(device)] = output

    def __len__(self) -> int:
        return len(self.moves.tops)

    def show(self, view: Tensor | int, positions: Tensor, images: Tensor | None = None) -> Tensor:
        """What networks see at `positions`, in one view or in a view per image; `images` if already on the device."""
        if images is None:
            images = to_device(self.split.take(positions)[0], self.device)
        moves = self.moves.at(view, to_device(positions, self.device))
        return self.pixels.normalise(self.pixels.crop_and_flip(images, moves))

    def outputs(self, view: Tensor | int, positions: Tensor) -> dict[str, Tensor]:
        """The functions' outputs for those views."""
        positions = to_device(positions, self.device)
        return {name: values[view, positions] for name, values in self.values.items()}


class SampleCache:
    """The same for a memory's samples: cached views where they fit into the budget, else fresh ones."""

    def __init__(self, cached: CachedFunctions, pixels: Pixels, device: torch.device) -> None:
        self.cached, self.pixels = cached, pixels
        self._cache: FeatureCache | None = None
        memory = cached.memory
        assert memory is not None
        split = Split(memory.images, torch.arange(len(memory)), memory.labels)
        num_views = num_views_that_fit(cached, split, pixels, device, num_other_images=len(memory))
        if num_views:
            self._cache = FeatureCache(split, pixels, cached, cached.memory_key, num_views, device, plain=True)

    def recall(self, key: Key, samples: Samples, augmented: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A view of each sample, augmented where `augmented` is true, and the functions' outputs for it."""
        rng = (key / "recalled view").generator()
        if self._cache is None:
            view = augment(samples.images, self.pixels, rng, samples.shard)
            x = torch.where(augmented[:, None, None, None], view, self.pixels.normalise(samples.images))
            return x, self.cached(x)
        plain = len(self._cache) - 1
        chosen = samples.draw(lambda num: torch.randint(0, plain, (num,), generator=rng))
        views = torch.where(augmented, to_device(chosen, augmented.device), plain)
        return self._cache.show(views, samples.slots, samples.images), self._cache.outputs(views, samples.slots)
