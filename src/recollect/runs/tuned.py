"""Settings that searches on validation images have chosen: tuned.json, written by benchmarks/tuned.py."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, TypedDict

from recollect.errors import UserError
from recollect.storage.documents import parse_json


class Tuned(TypedDict):
    """The best of the settings that were tried for a method on a stream."""

    stream: str
    method: str
    settings: dict[str, Any]
    """Those that the search varied."""
    where: dict[str, Any]
    """What all runs of the search had in common and its results depend on."""
    tried: int
    seeds: int
    validation: float
    """Mean task-known accuracy on validation images, in percent."""


def tuned() -> list[Tuned]:
    """All searches, the one of each stream and method that tried most."""
    return parse_json((files("recollect.runs") / "tuned.json").read_bytes(), list[Tuned])


def tuned_settings(stream: str, method: str) -> Tuned:
    """The settings that a search has chosen for a method on a stream.

    >>> tuned_settings("split-cifar100", "lwf")["settings"]
    {'distill': 1.0}
    """
    rows = tuned()
    for row in rows:
        if (row["stream"], row["method"]) == (stream, method):
            return row
    known = ", ".join(f"{row['method']} on {row['stream']}" for row in rows)
    raise UserError(f"no search has chosen settings for {method} on {stream}; leave out --best. There are: {known}")
