"""Which options of a run differ from their defaults.

A run records it in result.json. Results from before that are compared with `earlier_defaults.json`, the defaults they
were made with, so that a later change of a default relabels nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

SECTIONS = ("stream", "method", "backbone", "training")
Options = dict[str, dict[str, Any]]
"""By section."""

ADDED_TO_RFE = {"shrinkage": 0.2, "head_weight": 0.5, "gentle": "never"}
"""Options that RFE got later, at the values with which its first rules do what they did before: they read neither of
the first two. A result without them is of the same variant as one with these values."""
FIRST_RULES = ("average", "class-means")


def with_added_options(method: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method as a run of today would record them."""
    is_first = method["name"].startswith("rfe") and method.get("identity") in FIRST_RULES
    return (ADDED_TO_RFE if is_first else {}) | dict(method)


def non_default_options(result: Mapping[str, Any]) -> Options | None:
    """By section, the options that differ from their defaults; None where neither the run nor the table knows them."""
    recorded = result.get("non_default_options")
    if recorded is not None:
        return {section: dict(recorded[section]) for section in SECTIONS}
    defaults = earlier_defaults(result["config"])
    if defaults is None:
        return None
    return {
        section: {
            name: value
            for name, value in result["config"][section].items()
            if name != "name" and value != defaults[section].get(name, ...)
        }
        for section in SECTIONS
    }


def earlier_defaults(config: Mapping[str, Any]) -> Options | None:
    """The defaults of a config from before runs recorded them; None for names that the package did not have."""
    table = _table()
    try:
        stream = table["streams"][config["stream"]["name"]]
        method = table["methods"][config["method"]["name"]]
        backbone = table["backbones"][config["backbone"]["name"]]
    except KeyError:
        return None
    is_stream_backbone = stream["backbone"]["name"] == config["backbone"]["name"]
    return {
        "stream": stream["options"],
        "method": method | {name: value for name, value in stream["method"].items() if name in method},
        "backbone": backbone["options"] | (stream["backbone"] if is_stream_backbone else {}),
        "training": table["training"] | stream["training"] | backbone["training"],
    }


@cache
def _table() -> dict[str, Any]:
    path = files("recollect.report") / "earlier_defaults.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))
