"""Finished results, wherever they lie under given folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20


def find_results(folders: Sequence[Path]) -> dict[Path, dict[str, Any]]:
    """Every JSON file under the folders (or named itself) that is a run's result, in the order of their names."""
    return {path: found for folder in folders for path, found in _walk(folder)}


def _walk(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.json")):
        if path.stat().st_size > MOST_BYTES:
            continue
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError):
            continue
        if is_result(found):
            yield path, found


def is_result(found: Any) -> bool:
    """Whether a JSON value is what `recollect run` writes as result.json."""
    return (
        isinstance(found, dict)
        and {"til", "cil", "config", "seed", "seconds", "parameters", "memory"} <= found.keys()
        and isinstance(found["config"], dict)
        and isinstance(found["config"].get("hash"), str)
    )
