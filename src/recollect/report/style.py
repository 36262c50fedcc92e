"""The order of methods in tables and their colours in pictures.

A run writes both into result.json, as `display`, from the method's own row. The tables here are for earlier results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

EARLIER_ORDER = ("joint", "finetune", "lwf", "ewc", "si", "expansion", "agem", "er", "derpp", "er-ace", "er-mkd",
                 "tamil", "cls-er", "rfe", "rfe-p", "rfe-b", "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection",
                 "rfe-no-aux")  # fmt: skip
EARLIER_COLOURS = {"rfe": "tab:green", "rfe-p": "limegreen", "rfe-b": "darkolivegreen", "er": "tab:orange",
                   "derpp": "tab:purple", "finetune": "tab:red", "tamil": "tab:blue", "cls-er": "tab:brown",
                   "er-mkd": "tab:pink", "er-ace": "goldenrod", "agem": "tab:cyan"}  # fmt: skip
OTHER_COLOURS = ("steelblue", "sienna", "teal", "crimson", "slateblue", "olive", "deeppink", "dimgray", "darkorange")


def order_of(result: Mapping[str, Any]) -> tuple[int, str]:
    """Sorts methods by the order in their row, then by name."""
    method, display = str(result["config"]["method"]["name"]), result.get("display")
    if display:
        return int(display["order"]), method
    return (10 * EARLIER_ORDER.index(method) if method in EARLIER_ORDER else 1000), method


def colour_of(result: Mapping[str, Any]) -> str:
    """The colour of the method's line in every picture; without one in its row, one that follows from its name."""
    method, display = str(result["config"]["method"]["name"]), result.get("display")
    colour = display["colour"] if display else EARLIER_COLOURS.get(method)
    number = int.from_bytes(hashlib.sha256(method.encode()).digest()[:4])
    return str(colour or OTHER_COLOURS[number % len(OTHER_COLOURS)])
