"""Where commands print."""

from __future__ import annotations

import sys

from rich.console import Console

WIDE = 10_000  # columns: what is piped is neither folded nor cut


def stdout() -> Console:
    """As wide as the terminal, or as wide as need be where there is none."""
    return Console(width=None if sys.stdout.isatty() else WIDE)
