"""Model folders: versions side by side, and a pointer to the one in use. Files appear whole or not at all.

model/
  model.json                    format, and the name of the current version
  versions/002-june/model.json  settings, tasks with classes and figures, constants; no image
  versions/002-june/weights.safetensors
  unfinished/                   a learn that was cut: it goes on with the same command
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from safetensors import SafetensorError

from recollect.deploy.model import FORMAT, LearnedTask, Model, Settings, Typical
from recollect.errors import UserError
from recollect.storage import UNFINISHED, read_json, seal, seal_matches, sync, write_json
from recollect.storage.tensors import load_tensors, save_tensors
from recollect.streams.images import is_litter

KEPT = 5  # versions; older ones go


Positive = Annotated[float, msgspec.Meta(gt=0)]


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
    checks: dict[str, dict[str, dict[str, float]]]
    sha256: str
    """Of weights.safetensors."""
    digest: str
    """Seals the rest."""


def save_version(folder: Path, model: Model) -> str:
    """Write a version beside the others and make it the current one; a crash leaves the old one current."""
    versions, known = folder / "versions", _lineages(folder)
    mine = [asdict(task) for task in model.tasks]
    _refuse_another(folder, known, mine)
    same = [name for name, tasks in known.items() if tasks == _plain(mine)]
    name = same[0] if same else _free(f"{len(model.tasks):03}-{_slug(model.tasks[-1].name)}", versions)
    if not same:
        versions.mkdir(parents=True, exist_ok=True)
        aside = versions / UNFINISHED
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            sha256 = save_tensors(aside / "weights.safetensors", model.tensors)
            about = model.to_json() | {"sha256": sha256, "checks": _checks_so_far(folder) | model.checks}
            write_json(aside / "model.json", seal(about, "digest"))
            sync(aside)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise UserError(
                f"the model cannot be written to {folder} ({error}); make room. The old model is whole"
            ) from error
        os.replace(aside, versions / name)
        sync(versions)
    point_to(folder, name)
    _prune(folder, _plain(mine))
    return name


def _checks_so_far(folder: Path) -> dict[str, Any]:
    """What `check` found with the current version, which a model in memory may not know."""
    if not (folder / "model.json").exists():
        return {}
    return dict(read_about(folder / "versions" / current(folder))["checks"])


def _refuse_another(folder: Path, known: Mapping[str, Any], mine: Sequence[Any]) -> None:
    """A folder takes versions that go on from its current one, and nothing else's."""
    if not (folder / "model.json").exists():
        strangers = strangers_in(folder)
        if strangers:
            raise UserError(f"{folder} cannot take this model: it holds {strangers[0]}; give an empty or new folder")
        if known and _plain(mine) not in known.values():  # nor is it this one, cut before its pointer was written
            current(folder)  # says what is lost, and the way back
        return
    held = known.get(current(folder))
    if held is None or held != _plain(mine)[: len(held)]:
        raise UserError(f"{folder} holds another model; save this one to an empty or new folder")


def strangers_in(folder: Path) -> list[str]:
    """What in a folder is not of a model, nor what a crash left of one, nor what systems leave anywhere."""

    def is_ours(path: Path) -> bool:
        known = path.name in ("model.json", "versions", "lock", UNFINISHED) or path.name.endswith(f".{UNFINISHED}")
        return known or is_litter(path)

    return sorted(path.name for path in folder.iterdir() if not is_ours(path)) if folder.exists() else []


def _prune(folder: Path, tasks: Sequence[Any]) -> None:
    """Keep so many versions: those that the current one came from first, newest first."""
    known = _lineages(folder)
    came_from = [name for name, held in known.items() if held == tasks[: len(held)]]
    others = sorted(known.keys() - set(came_from), key=lambda name: str(known[name][-1]["learned"]))
    for name in [*sorted(came_from, key=lambda name: -len(known[name])), *reversed(others)][KEPT:]:
        shutil.rmtree(folder / "versions" / name)


def _lineages(folder: Path) -> dict[str, Any]:
    """The tasks of every version that can be read, by its name."""
    found = {}
    for name in versions_of(folder):
        try:
            found[name] = read_about(folder / "versions" / name)["tasks"]
        except UserError:
            continue
    return found


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value))


def _free(name: str, versions: Path) -> str:
    """The name, with a number where a branch that was rolled back has it."""
    others = itertools.count(2)
    found = name
    while (versions / found).exists():
        found = f"{name}-{next(others)}"
    return found


def note_checks(folder: Path, version: str, checks: dict[str, dict[str, dict[str, float]]]) -> None:
    """Keep accuracies that `check` found with a version."""
    path = folder / "versions" / version
    write_json(path / "model.json", seal(read_about(path) | {"checks": checks}, "digest"))


def point_to(folder: Path, name: str) -> None:
    """Make a version the current one."""
    write_json(folder / "model.json", {"format": FORMAT, "current": name})
    sync(folder)


def finish(folder: Path, learn: str) -> bool:
    """Where a learn has its version already, because it was cut after that or rolled back: make it the current one."""
    for name, tasks in _lineages(folder).items():
        if tasks[-1]["learn"] == learn:
            load_model(folder, name)
            point_to(folder, name)
            shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
            return True
    return False


def model_before(folder: Path) -> Model | None:
    """The version that the current one came from, if it is kept."""
    known = _lineages(folder)
    tasks = known.get(current(folder), [])
    return next((load_model(folder, name) for name, held in known.items() if tasks and held == tasks[:-1]), None)


def current(folder: Path) -> str:
    """The name of the version in use."""
    path = folder / "model.json"
    kept = versions_of(folder)
    remedy = (
        f"go back to a version with recollect rollback {folder} --to {kept[-1]}" if kept else "restore it from a copy"
    )
    if not path.exists():
        if kept:
            raise UserError(f"{path} is lost; {remedy}")
        if (folder / UNFINISHED).is_dir():
            raise UserError(
                f"{folder} holds no model yet: its first learn was cut, and the same command goes on with it"
            )
        raise UserError(f"{folder} holds no model; make one with recollect learn {folder} IMAGES --task NAME")
    _check_format(path, remedy)
    name = read_json(path, PointerFile, remedy)["current"]
    if not re.fullmatch(r"\d{3,}-[\w.-]+", name):
        raise UserError(f"{path} names the version {name!r}, which cannot be; {remedy}")
    return name


def versions_of(folder: Path) -> list[str]:
    """All versions, oldest first."""
    return sorted(path.name for path in (folder / "versions").glob("[0-9]*") if (path / "model.json").exists())


def roll_back(folder: Path, to: str) -> str:
    """Make the version that ends with a task, or that is called so, the current one; its name.

    Of several that end with the task, one that the current version came from counts.
    """
    known, to = _lineages(folder), unicodedata.normalize("NFC", to)
    named = [name for name, tasks in known.items() if to in (name, tasks[-1]["name"])]
    try:
        tasks = known.get(current(folder), [])
    except UserError:  # the pointer is lost or damaged, and is written anew
        tasks = []
    line = [name for name in named if known[name] == tasks[: len(known[name])]]
    if len(line or named) != 1:
        shown = ", ".join(f"{name} ({tasks[-1]['name']})" for name, tasks in known.items()) or "none that can be read"
        what = f"several versions end with {to!r}" if named else f"there is no version that ends with {to!r}"
        raise UserError(f"{what}; name one of: {shown}")
    (found,) = line or named
    load_model(folder, found)
    point_to(folder, found)
    return found


def read_about(place: Path) -> dict[str, Any]:
    """A version's model.json, checked against its own digest."""
    path = place / "model.json"
    _check_format(path, "restore it from a copy")
    about = read_json(path, dict[str, Any], "restore it from a copy")
    try:
        if not seal_matches(about, "digest"):
            raise ValueError("it does not match its digest")
        msgspec.convert(about, VersionFile)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); restore it from a copy") from error
    return about


def load_model(folder: Path, version: str | None = None) -> Model:
    """The current version of a model, or another; checked against its hashes."""
    name = version or current(folder)
    place = folder / "versions" / name
    try:
        about = msgspec.convert(read_about(place), VersionFile)
        return Model(
            settings=about["settings"],
            mean=about["mean"],
            std=about["std"],
            tasks=about["tasks"],
            temperature=about["temperature"],
            tensors=load_tensors(place / "weights.safetensors", about["sha256"]),
            typical=about["typical"],
            checks=about["checks"],
        )
    except FormatError:
        raise
    except (ValueError, OSError) as error:
        others = [each for each in _lineages(folder) if each != name]
        remedy = f"go back with recollect rollback {folder} --to {others[-1]}" if others else "restore it from a copy"
        raise UserError(f"the model in {place} cannot be used ({error}); {remedy}") from error


class FormatError(UserError):
    """The file is intact, and of another version of recollect."""


class _FormatField(TypedDict):
    format: int


def _check_format(path: Path, remedy: str) -> None:
    """Before anything else is expected of the file."""
    found = read_json(path, _FormatField, remedy)["format"]
    if found != FORMAT:
        raise FormatError(
            f"{path} has the format {found!r}, this recollect reads {FORMAT}; use the recollect that wrote it, "
            "or learn the model anew"
        )


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:40] or "task"
