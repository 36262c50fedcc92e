"""What kind of stream was learned, in the words of the literature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLASS_INCREMENTAL = "class-incremental"


def scenario(options: Mapping[str, Any]) -> str:
    """The name of a stream with such options, as configs have them."""
    shift, tasks, blur, imbalance = (options.get(name) for name in ("shift", "tasks", "blur", "imbalance"))
    kinds = [CLASS_INCREMENTAL if shift in (None, "none") else f"domain-incremental ({shift})"]
    named = [str(name) for task in tasks for name in task] if isinstance(tasks, list) else []
    if options.get("repeats") or len(set(named)) < len(named):
        kinds.append("repeating classes")
    if isinstance(blur, float) and blur:
        kinds.append(f"blurry ({blur:.0%})")
    if isinstance(imbalance, float) and imbalance != 1:
        kinds.append(f"imbalanced ({imbalance:g} to 1)")
    return ", ".join(kinds)
