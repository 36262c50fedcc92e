"""The rank of this process, as torchrun gives it through the environment."""

from __future__ import annotations

import os
from typing import NamedTuple


class Launch(NamedTuple):
    """One of `world_size` processes that torchrun started; by default the only process."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """The rank among the processes on this machine."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files and prints."""
        return self.rank == 0


SINGLE_LAUNCH = Launch()


def read_launch() -> Launch:
    """Read the environment variables that torchrun sets."""
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not os.environ.get("MASTER_ADDR") or not all(value.isdecimal() for value in values):
        return SINGLE_LAUNCH
    return Launch(*map(int, values))
