"""The order of methods in tables, and their colours and markers in pictures.

A run writes them into result.json, as `display`, from the method's own row. The tables here are for earlier results.

The colours are those of Okabe and Ito, and three more, each with a contrast of at least 3 to white and to a dark page.
Markers tell methods of the same colour apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.colors import is_color_like, to_hex


class Style(NamedTuple):
    colour: str
    """As #rrggbb."""
    marker: str
    """As Matplotlib names it."""


EARLIER_ORDER = ("joint", "finetune", "lwf", "ewc", "si", "expansion", "agem", "er", "derpp", "er-ace", "er-mkd",
                 "tamil", "cls-er", "rfe", "rfe-p", "rfe-b", "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection",
                 "rfe-no-aux")  # fmt: skip
EARLIER_STYLES = {
    "joint": ("#808080", "D"),
    "finetune": ("#808080", "v"),
    "lwf": ("#a8435a", "o"),
    "ewc": ("#b07d00", "^"),
    "si": ("#c9659e", "D"),
    "expansion": ("#808080", "s"),
    "packnet": ("#d55e00", "D"),
    "pnn": ("#b07d00", "o"),
    "supsup": ("#c9659e", "s"),
    "hat": ("#7a5fc4", "D"),
    "agem": ("#c9659e", "X"),
    "er": ("#d55e00", "o"),
    "derpp": ("#b07d00", "s"),
    "er-ace": ("#a8435a", "v"),
    "er-mkd": ("#d55e00", "s"),
    "tamil": ("#c9659e", "^"),
    "cls-er": ("#a8435a", "D"),
    "ncm": ("#808080", "o"),
    "slda": ("#b07d00", "D"),
    "fsa": ("#7a5fc4", "s"),
    "ranpac": ("#d55e00", "^"),
    "fecam": ("#a8435a", "X"),
    "ldc": ("#c9659e", "o"),
    "rfe": ("#0072b2", "o"),
    "rfe-p": ("#3c93cf", "^"),
    "rfe-b": ("#3c93cf", "s"),
    "rfe-plus": ("#009e73", "D"),
    "rfe-e2e": ("#7a5fc4", "o"),
    "rfe-mlp-residual": ("#0072b2", "X"),
    "rfe-mlp-projection": ("#009e73", "v"),
    "rfe-no-aux": ("#7a5fc4", "^"),
    "rfe-affine": ("#0072b2", "s"),
}
"""Of results that do not record a marker; the rows of these methods have the same."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c9659e", "#b07d00", "#3c93cf", "#7a5fc4", "#a8435a", "#808080")
MARKERS = ("o", "s", "^", "D", "v", "X")
ORIGINAL, DRIFTED, RECTIFIED = "#808080", "#d55e00", "#0072b2"
"""Colours of features, and of heads that read them."""


def order_of(result: Mapping[str, Any]) -> tuple[int, str]:
    """Sorts methods by the order in their row, then by name."""
    method, display = str(result["config"]["method"]["name"]), result.get("display")
    if display:
        return int(display["order"]), method
    return (10 * EARLIER_ORDER.index(method) if method in EARLIER_ORDER else 1000), method


def style_of(result: Mapping[str, Any]) -> Style:
    """The method's colour and marker in every picture; what its row does not have follows from its name."""
    method, display = str(result["config"]["method"]["name"]), result.get("display") or {}
    if "marker" not in display and method in EARLIER_STYLES:
        return Style(*EARLIER_STYLES[method])
    digest = hashlib.sha256(method.encode()).digest()
    colour, marker = str(display.get("colour", "")), display.get("marker")
    return Style(
        to_hex(colour) if is_color_like(colour) else COLOURS[digest[0] % len(COLOURS)],
        str(marker) if marker in MARKERS else MARKERS[digest[1] % len(MARKERS)],
    )
