"""Which of a run's processes this is: torchrun says it through the environment."""

from __future__ import annotations

import os
from typing import NamedTuple


class Launch(NamedTuple):
    """A process among those that torchrun started; alone where it started none."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among those on this machine."""


def launched() -> Launch:
    """Read the environment."""
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not os.environ.get("MASTER_ADDR") or not all(value.isdecimal() for value in found):
        return Launch()
    return Launch(*map(int, found))
