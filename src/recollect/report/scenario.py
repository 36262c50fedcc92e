"""What kind of stream was learned, in the words of the literature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLASS_INCREMENTAL = "class-incremental"


def scenario(options: Mapping[str, Any]) -> str:
    """The name of a stream with such options, as configs have them."""
    shift, blur, imbalance = (options.get(name) for name in ("shift", "blur", "imbalance"))
    kinds = [CLASS_INCREMENTAL if shift in (None, "none") else f"domain-incremental ({shift})"]
    if _repeats(options):
        kinds.append("repeating classes")
    if isinstance(blur, float) and blur:
        kinds.append(f"blurry ({blur:.0%})")
    if isinstance(imbalance, float) and imbalance != 1:
        kinds.append(f"imbalanced ({imbalance:g} to 1)")
    return ", ".join(kinds)


def shares_classes(options: Mapping[str, Any]) -> bool:
    """Whether a class may be in several tasks, so that none of them is the task of its images."""
    return options.get("shift") not in (None, "none") or bool(options.get("blur")) or _repeats(options)


def _repeats(options: Mapping[str, Any]) -> bool:
    tasks = options.get("tasks")
    named = [str(name) for task in tasks for name in task] if isinstance(tasks, list) else []
    return bool(options.get("repeats")) or len(set(named)) < len(named)
