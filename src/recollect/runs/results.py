"""Finished results, wherever they lie under given folders."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
SKIPPED = re.compile(r"checkpoint|\..*|.*unfinished", re.DOTALL)  # folders
VANISHED = (FileNotFoundError, NotADirectoryError)  # beside a run under way files and folders come and go
SUMMARY = ("matrix", "average_accuracy", "incremental_accuracy", "forgetting")
CONFIG = ("stream", "method", "backbone", "training")


def find_results(folders: Sequence[Path]) -> dict[Path, dict[str, Any]]:
    """Every JSON file under the folders (or named itself) that is a run's result, in the order of their names.

    A `result.json` that is none, or any file too large to be one, is reported and skipped. Checkpoints, hidden and
    unfinished folders and links to folders are not looked into.
    """
    return {path: found for folder in folders for path, found in _walk(folder)}


def _walk(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in [folder] if folder.is_file() else sorted(_json_files(folder)):
        try:
            if path.stat().st_size > MOST_BYTES:
                warnings.warn(
                    f"{path} has more than {MOST_BYTES >> 20} MB and is no result; it is left out", stacklevel=4
                )
                continue
            found = json.loads(path.read_text(encoding="utf-8"))
        except VANISHED:
            continue
        except (ValueError, OSError, RecursionError) as error:
            found = str(error)
        problem = problem_of(found)
        if not problem:
            yield path, found
        elif path.name == "result.json" or path == folder:
            warnings.warn(f"{path} is no result ({problem}); it is left out", stacklevel=4)


def _json_files(folder: Path) -> Iterator[Path]:
    def report(error: OSError) -> None:
        if not isinstance(error, VANISHED):
            warnings.warn(f"{error.filename} cannot be read ({error.strerror}); it is left out", stacklevel=6)

    for parent, folders, files in os.walk(folder, onerror=report):
        folders[:] = [name for name in folders if not SKIPPED.fullmatch(name)]
        yield from (Path(parent, name) for name in files if name.endswith(".json"))


def problem_of(found: Any) -> str:
    """Why a JSON value is not what `recollect run` writes as result.json; nothing if it is."""
    if not isinstance(found, dict):
        return found if isinstance(found, str) else "no object"
    config = found.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("hash"), str):
        return "no config with a hash"
    sections = [config.get(section) for section in CONFIG]
    if not all(isinstance(section, dict) for section in sections):
        return "a section of its config is missing"
    if not all(isinstance(config[section].get("name"), str) for section in CONFIG[:3]):
        return "a name is missing in its config"
    if type(found.get("seed")) is not int:
        return "its seed is no whole number"
    for evaluation in ("til", "cil"):
        if not _is_summary(found.get(evaluation)):
            return f"{evaluation} is missing or of another shape"
    if found.get("til_without_chain") is not None and not _is_summary(found["til_without_chain"]):
        return "til_without_chain is of another shape"
    if not _is_drift(found.get("drift"), len(found["til"]["matrix"])):
        return "drift is of another shape"
    numbers = [(found.get(part), name) for part, name in NUMBERS]
    if not all(isinstance(part, dict) and _is_number(part.get(name)) for part, name in numbers):
        return "parameters or memory are missing"
    seconds = found.get("seconds")
    if not isinstance(seconds, dict) or not all(map(_is_number, seconds.values())):
        return "seconds are missing"
    return "" if _is_number(found.get("images_per_second")) else "images_per_second is missing"


NUMBERS = (("parameters", "training"), ("parameters", "inference"), ("memory", "samples"), ("memory", "bytes"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_summary(value: Any) -> bool:
    if not isinstance(value, dict) or not set(SUMMARY) <= value.keys():
        return False
    if not all(value[name] is None or _is_number(value[name]) for name in SUMMARY[1:]):
        return False
    matrix = value["matrix"]
    return isinstance(matrix, list) and bool(matrix) and all(_is_row(row, len(matrix)) for row in matrix)


def _is_drift(value: Any, size: int) -> bool:
    """Nothing, or two matrices and the points of each task."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    matrices = [value.get(name) for name in ("drifted", "rectified")]
    if not all(isinstance(m, list) and len(m) == size and all(_is_row(row, size) for row in m) for m in matrices):
        return False
    scatter = value.get("scatter", [])
    return isinstance(scatter, list) and all(
        isinstance(place, dict)
        and _are_points(place.get("original"))
        and all(
            isinstance(place.get(name), list) and all(each is None or _are_points(each) for each in place[name])
            for name in ("drifted", "rectified")
        )
        for place in scatter
    )


def _are_points(value: Any) -> bool:
    return isinstance(value, list) and all(_is_row(point, 2) and None not in point for point in value)


def _is_row(row: Any, size: int) -> bool:
    return isinstance(row, list) and len(row) == size and all(cell is None or _is_number(cell) for cell in row)
