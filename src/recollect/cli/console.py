"""Where commands print."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

from recollect.escaping import escape_controls, escape_json

WIDE = 10_000  # columns: what is piped is neither folded nor cut


def stdout() -> Console:
    """As wide as the terminal, or as wide as need be where there is none."""
    return Console(width=None if sys.stdout.isatty() else WIDE, emoji=False)


def print_text(text: str) -> None:
    """A line of text with names in it."""
    print(escape_controls(text))


def print_json(value: Any) -> None:
    """As it is where the output can show every letter, else with escapes, which mean the same."""
    is_wide = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(escape_json(json.dumps(value, indent=1, ensure_ascii=not is_wide, allow_nan=False)))
