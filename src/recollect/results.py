"""The schema of result.json, and the results under given folders."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from recollect.storage.documents import load_json

SKIPPED = re.compile(r"checkpoint|\..*|.*unfinished", re.DOTALL)  # folders
VANISHED = (FileNotFoundError, NotADirectoryError)  # files and folders may disappear while runs are working
Matrix = list[list[float | None]]
Point = tuple[float, float]


class Summary(TypedDict):
    """One evaluation."""

    matrix: Matrix
    average_accuracy: float | None
    incremental_accuracy: float | None
    forgetting: float | None


class Scatter(TypedDict):
    """Features of one task on two axes: as they were, and after each later task."""

    original: list[Point]
    drifted: list[list[Point] | None]
    rectified: list[list[Point] | None]


class Drift(TypedDict):
    drifted: Matrix
    rectified: Matrix
    scatter: NotRequired[list[Scatter]]


class Section(TypedDict):
    """A stream or backbone of a config, with options that come and go between versions."""

    name: str


class MethodFile(TypedDict):
    """The version of the Python file that defines a method which is not registered."""

    sha256: str


class ConfigSections(TypedDict):
    """What of a result's config is relied on."""

    stream: Section
    method: Section
    backbone: Section
    training: dict[str, Any]
    method_file: NotRequired[MethodFile]
    hash: str


class Options(TypedDict):
    """Options by section."""

    stream: dict[str, Any]
    method: dict[str, Any]
    backbone: dict[str, Any]
    training: dict[str, Any]


class ParameterCounts(TypedDict):
    training: int
    inference: int


class MemorySize(TypedDict):
    samples: int
    bytes: int


class Validation(TypedDict, total=False):
    til: float | None
    cil: float | None


class Display(TypedDict):
    """How the method is drawn and sorted, from its own row."""

    colour: str
    order: int
    marker: NotRequired[str]


class ResultFile(TypedDict):
    """result.json, as far as anything reads it."""

    til: Summary
    cil: Summary
    til_without_chain: NotRequired[Summary | None]
    task_prediction: NotRequired[Summary]
    validation: NotRequired[Validation]
    drift: NotRequired[Drift | None]
    parameters: ParameterCounts
    values_held: NotRequired[int]
    bytes_held: NotRequired[dict[str, int]]
    memory: MemorySize
    seconds: dict[str, float]
    images_per_second: float
    seed: int
    config: ConfigSections
    display: NotRequired[Display]
    non_default_options: NotRequired[Options]
    command: NotRequired[str]
    commit: NotRequired[str]
    finished: NotRequired[str]
    environment: NotRequired[dict[str, Any]]
    data: NotRequired[str | None]


def find_results(folders: Sequence[Path]) -> dict[Path, dict[str, Any]]:
    """Every JSON file under the folders (or named itself) that is a run's result, in the order of their names.

    A `result.json` that is none, or any file too large to be one, is reported and skipped. Checkpoints, hidden and
    unfinished folders and links to folders are not looked into.
    """
    return {path: result for folder in folders for path, result in _walk(folder)}


def _walk(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in [folder] if folder.is_file() else sorted(_json_files(folder)):
        try:
            result = load_json(path, dict[str, Any])
        except VANISHED:
            continue
        except (ValueError, OSError) as error:
            problem = str(error)
        else:
            problem = problem_of(result)
        if not problem:
            yield path, result
        elif path.name == "result.json" or path == folder:
            warnings.warn(f"{path} is not a result ({problem}); skipped", stacklevel=4)


def _json_files(folder: Path) -> Iterator[Path]:
    def report(error: OSError) -> None:
        if not isinstance(error, VANISHED):
            warnings.warn(f"{error.filename} cannot be read ({error.strerror}); it is skipped", stacklevel=6)

    for parent, folders, files in os.walk(folder, onerror=report):
        folders[:] = [name for name in folders if not SKIPPED.fullmatch(name)]
        yield from (Path(parent, name) for name in files if name.endswith(".json"))


def problem_of(value: Any) -> str:
    """Why a JSON value is not what `recollect run` writes as result.json; nothing if it is."""
    try:
        result = msgspec.convert(value, ResultFile)
    except msgspec.ValidationError as error:
        return str(error)
    drift, size = result.get("drift"), len(result["til"]["matrix"])
    matrices = [result[name]["matrix"] for name in ("til", "cil")]
    optional = (result.get("til_without_chain"), result.get("task_prediction"))
    matrices += [summary["matrix"] for summary in optional if summary]
    matrices += [drift["drifted"], drift["rectified"]] if drift else []
    if not size or any(len(matrix) != size or any(len(row) != size for row in matrix) for matrix in matrices):
        return "a matrix does not have one row and one column for each task"
    return ""
