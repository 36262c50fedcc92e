"""The files of a model folder: versions side by side, and a pointer to the current one.

model/
  model.json                    format, and the name of the current version
  versions/002-june/model.json  settings, tasks with classes and figures, constants; no image
  versions/002-june/weights.safetensors
  versions/002-june/model.onnx  where `recollect export` stored it, with its hashes in model.onnx.json
  unfinished/                   checkpoints of an interrupted learn; the same command resumes it
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from safetensors import SafetensorError

from recollect.deploy.model import EARLIER_IDENTITY, FORMAT, READABLE_FORMATS, LearnedTask, Model, Settings, Typical
from recollect.errors import UserError
from recollect.storage import UNFINISHED, read_json, seal, seal_matches, sync, write_json
from recollect.storage.tensors import load_tensors, save_tensors

Positive = Annotated[float, msgspec.Meta(gt=0)]
Checks = dict[str, dict[str, dict[str, float]]]
State = Literal["intact", "damaged", "of another format"]
RESTORE = "restore it from a backup"


class PointerFile(TypedDict):
    """model.json of the folder."""

    format: int
    current: str


class VersionFile(TypedDict):
    """model.json of a version."""

    format: int
    settings: Settings
    mean: tuple[float, float, float]
    std: tuple[Positive, Positive, Positive]
    tasks: Annotated[tuple[LearnedTask, ...], msgspec.Meta(min_length=1)]
    temperature: Positive
    typical: Typical | None
    checks: Checks
    sha256: str
    """Of weights.safetensors."""
    digest: str
    """Of all other fields."""


class FormatError(UserError):
    """An intact file that another version of recollect wrote."""


def is_version(name: str) -> bool:
    """Whether a name has the form of a version's."""
    return re.fullmatch(r"\d{3,}-[\w.-]+", name) is not None


def list_versions(folder: Path) -> list[str]:
    """The names of all versions, oldest first."""
    names = (path.name for path in (folder / "versions").glob("[0-9]*") if (path / "model.json").exists())
    return sorted(names, key=_as_numbered)


def _as_numbered(name: str) -> list[str | int]:
    """Sorts 2 before 10."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", name))]


def read_pointer(folder: Path) -> str:
    """The name of the current version."""
    path, versions = folder / "model.json", list_versions(folder)
    remedy = f"choose a version with recollect rollback {folder} --to {versions[-1]}" if versions else RESTORE
    if not path.exists():
        if versions:
            raise UserError(f"{path} is missing; {remedy}")
        if (folder / UNFINISHED).is_dir():
            raise UserError(
                f"{folder} has no model yet: its first learn has not finished; if it is not running, rerun its command"
            )
        if folder.is_file():
            raise UserError(f"{folder} is a file; give the model folder (predict and serve also read exported files)")
        what = f"{folder} has no model" if folder.is_dir() else f"there is no folder {folder}"
        raise UserError(f"{what}; recollect learn {folder} IMAGES --task NAME creates a model there")
    document = _read_document(path, remedy)
    try:
        name = msgspec.convert(document, PointerFile)["current"]
    except ValueError as error:
        raise UserError(f"{path} cannot be read ({error}); {remedy}") from error
    if not is_version(name):
        raise UserError(f"{path} names the version {name!r}, which is not a valid name; {remedy}")
    return name


def write_pointer(folder: Path, name: str) -> None:
    """Make a version the current one."""
    write_json(folder / "model.json", {"format": FORMAT, "current": name})
    sync(folder)


def read_version(path: Path) -> VersionFile:
    """A version's model.json, checked against its digest."""
    return _convert(_read_version_document(path), path)


def load_version(path: Path) -> Model:
    """The model of a version, checked against its hashes."""
    about = read_version(path)
    return Model(
        settings=about["settings"],
        mean=about["mean"],
        std=about["std"],
        tasks=about["tasks"],
        temperature=about["temperature"],
        tensors=load_tensors(path / "weights.safetensors", about["sha256"]),
        typical=about["typical"],
        checks=about["checks"],
    )


def read_state(path: Path) -> State:
    """Whether a version can be used."""
    try:
        load_version(path)
    except FormatError:
        return "of another format"
    except (ValueError, OSError):
        return "damaged"
    return "intact"


def write_version(folder: Path, model: Model) -> str:
    """Write a version next to the others, completely or not at all; returns its name."""
    versions = folder / "versions"
    versions.mkdir(parents=True, exist_ok=True)
    temporary = versions / UNFINISHED
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        sha256 = save_tensors(temporary / "weights.safetensors", model.tensors)
        write_json(temporary / "model.json", seal(model.to_json() | {"sha256": sha256}, "digest"))
        sync(temporary)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"the model cannot be written to {folder} ({error}); free some space. The previous model is intact"
        ) from error
    name = _choose_name(model, versions)
    os.replace(temporary, versions / name)
    sync(versions)
    return name


def add_checks(path: Path, new: Checks) -> None:
    """Record in a version accuracies that `check` measured, except where it has earlier ones of the same images."""
    checks = read_version(path)["checks"]
    checks |= {digest: tasks | checks.get(digest, {}) for digest, tasks in new.items()}
    write_json(path / "model.json", seal(_read_version_document(path) | {"checks": checks}, "digest"))


def _choose_name(model: Model, versions: Path) -> str:
    """Number and task, with a suffix if it was adapted to the task or edited since, or if another has that name."""
    slug = re.sub(r"[^\w.-]+", "-", model.tasks[-1].name).strip("-.")[:40] or "task"
    newest = model.tasks[-1]
    edited = f"-edited-{len(newest.edits)}" if len(newest.edits) > 1 else "-edited" * len(newest.edits)
    name = f"{len(model.tasks):03}-{slug}{'-adapted' * (newest.unadapted is not None)}{edited}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (versions / name).exists())


def _read_document(path: Path, remedy: str) -> dict[str, Any]:
    """A JSON file of this format, not yet checked against its schema."""
    document = read_json(path, dict[str, Any], remedy)
    if document.get("format") not in READABLE_FORMATS:
        raise FormatError(
            f"{path} has the format {document.get('format')!r}, this recollect reads {FORMAT}; use the recollect that "
            "wrote it, or learn the model again"
        )
    return document


def _read_version_document(path: Path) -> dict[str, Any]:
    file = path / "model.json"
    document = _read_document(file, RESTORE)
    if not seal_matches(document, "digest"):
        raise UserError(f"{file} is corrupt (it does not match its digest); {RESTORE}")
    return document


def _convert(document: dict[str, Any], path: Path) -> VersionFile:
    settings = document.get("settings")
    if isinstance(settings, dict) and "identity" not in settings:
        document = document | {"settings": settings | {"identity": EARLIER_IDENTITY}}
    try:
        about = msgspec.convert(document, VersionFile)
        if not about["settings"].image_size or not about["settings"].epochs:
            raise ValueError("its image size and epochs are not chosen")
        return about
    except ValueError as error:
        raise UserError(f"{path / 'model.json'} is corrupt ({error}); {RESTORE}") from error
