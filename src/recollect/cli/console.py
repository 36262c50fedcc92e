"""Where commands print."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

from recollect.escaping import escape_controls, escape_json

MAX_WIDTH = 10_000  # columns, so that piped output is neither wrapped nor truncated


def stdout() -> Console:
    """A console as wide as the terminal, or without limit if the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else MAX_WIDTH, emoji=False)


def print_text(text: str) -> None:
    """Print a line, with control characters in names escaped."""
    print(escape_controls(text))


def print_json(value: Any) -> None:
    """Print a JSON value; characters that the output cannot encode are escaped."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(escape_json(json.dumps(value, indent=1, ensure_ascii=not is_utf8, allow_nan=False)))
