"""Keyed randomness: every draw is a pure function of (seed, path).

There is no generator state to save or share. A key names a purpose, `Key(7) / "task" / 2 / "fit" / epoch / "order"`,
and the same key gives the same numbers on every device, in any order of asking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Key:
    """A seed and a path of names; divide by a name or number to get a child key."""

    seed: int
    path: tuple[str | int, ...] = ()

    def __truediv__(self, part: str | int) -> Key:
        return Key(self.seed, (*self.path, part))

    def number(self) -> int:
        """A 63-bit integer that depends on the whole key."""
        digest = hashlib.blake2b(repr((self.seed, *self.path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def generator(self) -> torch.Generator:
        """A fresh host generator; what it draws is moved to the device, so devices agree on every draw."""
        return torch.Generator().manual_seed(self.number())

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """Let constructors that draw from torch's global generator draw from this key, and restore it after."""
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(self.number())
        try:
            yield
        finally:
            torch.default_generator.set_state(before)

    def seed_layers(self) -> None:
        """Seed torch's global generators, for layers such as dropout that can draw from nowhere else."""
        torch.manual_seed(self.number())
