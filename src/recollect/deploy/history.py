"""How the versions of a model folder descend from each other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from recollect.deploy.model import LearnedTask, Model, lineage_of
from recollect.deploy.versions import (
    VersionFile,
    is_version,
    list_versions,
    read_state,
    read_version,
    write_pointer,
    write_version,
)
from recollect.errors import UserError
from recollect.storage import UNFINISHED, sync

MAX_VERSIONS = 5
"""Tasks whose newest version is kept, and as many versions besides: edits, and versions of other branches."""


def version_path(folder: Path, version: str) -> Path:
    """The folder of a version."""
    return folder / "versions" / version


def intact_versions(folder: Path) -> dict[str, VersionFile]:
    """All versions whose model.json can be read."""
    versions = {}
    for name in list_versions(folder):
        try:
            versions[name] = read_version(version_path(folder, name))
        except UserError:
            continue
    return versions


def newest_intact(folder: Path, *, but: str) -> str | None:
    """The newest other version that can be used, with its weights."""
    names = (name for name in reversed(list_versions(folder)) if name != but)
    return next((name for name in names if read_state(version_path(folder, name)) == "intact"), None)


def continues(lineage: list[str], other: list[str]) -> bool:
    """Whether a model comes from another, or is the same."""
    return lineage[: len(other)] == other


def succeeds(tasks: Sequence[LearnedTask], current: Sequence[LearnedTask]) -> bool:
    """Whether a model comes from the current version, or replaces its newest task by one that was adapted to."""
    lineage, theirs = lineage_of(tasks), lineage_of(current)
    if continues(lineage, theirs):
        return True
    newest, replaced = tasks[-1], current[-1]
    replaces = newest.name == replaced.name and newest.adapted and not replaced.adapted
    return replaces and lineage[:-1] == theirs[:-1]


def find_version_of_learn(folder: Path, learn: str) -> str | None:
    """The version as a learn left it, if there is one."""
    intact = intact_versions(folder)
    return next((name for name, about in intact.items() if lineage_of(about["tasks"])[-1] == learn), None)


def find_version_before(folder: Path, current: str) -> str | None:
    """The version that the current one continues, if it is kept."""
    lineages = _lineages(intact_versions(folder))
    return next((name for name, lineage in lineages.items() if lineage == lineages[current][:-1]), None)


def _lineages(versions: Mapping[str, VersionFile]) -> dict[str, list[str]]:
    return {name: lineage_of(about["tasks"]) for name, about in versions.items()}


def find_version(folder: Path, to: str, current: str | None) -> str:
    """The version that ends with the task `to`, or has that name.

    If several end with the task, the newest of those that the current version continues is meant.
    """
    intact = intact_versions(folder)
    lineages = _lineages(intact)
    matches = [name for name, about in intact.items() if to in (name, about["tasks"][-1].name)]
    ancestors = [name for name in matches if current in lineages and continues(lineages[current], lineages[name])]
    if ancestors:
        return max(ancestors, key=lambda name: len(lineages[name]))
    if len(matches) != 1:
        listed = ", ".join(f"{name} ({about['tasks'][-1].name})" for name, about in intact.items()) or "none"
        what = f"several versions end with {to!r}" if matches else f"there is no version that ends with {to!r}"
        if not matches and current in intact and to in [task.name for task in intact[current]["tasks"]]:
            what = f"the version that ended with {to!r} is not kept any more"
        raise UserError(f"{what}; choose one of: {listed}")
    return matches[0]


def make_current(folder: Path, model: Model) -> str:
    """Make a model the current version, written unless it is there already; returns its name."""
    lineages = _lineages(intact_versions(folder))
    name = next((name for name, lineage in lineages.items() if lineage == model.lineage), None)
    if name is None:
        name = write_version(folder, model)
    write_pointer(folder, name)
    _remove_old_versions(folder, model.lineage)
    return name


def find_holders(folder: Path, model: Model, after: Model, *, but: str) -> list[str]:
    """The other versions of tasks that lost units; also those that cannot be read, which may hold them."""
    changed = {old.name for old, new in zip(model.tasks, after.tasks, strict=True) if old.units != new.units}
    intact = intact_versions(folder)
    return [
        name
        for name in list_versions(folder)
        if name != but and (name not in intact or changed & {task.name for task in intact[name]["tasks"]})
    ]


def refuse_forgotten(folder: Path, names: Iterable[str], current: str) -> None:
    """Refuse classes that other versions have and the current one has not."""
    versions = intact_versions(folder).items()
    classes = {version: {name for task in about["tasks"] for name in task.classes} for version, about in versions}
    for gone in (name for name in names if name not in classes[current]):
        holders = ", ".join(version for version in classes if gone in classes[version])
        if holders:
            raise UserError(
                f"the current version {current} has no class {gone!r}, but {holders} still hold it; "
                f"recollect forget {folder} --purge deletes all versions but the current one"
            )


def remove_versions(folder: Path, *, but: str) -> list[str]:
    """Delete all versions but one, also damaged and unfinished ones; returns their names."""
    paths = sorted((folder / "versions").iterdir())
    doomed = [path for path in paths if path.name != but and (is_version(path.name) or path.name == UNFINISHED)]
    for path in doomed:
        _remove(path)
    sync(folder / "versions")
    return [path.name for path in doomed if path.name != UNFINISHED]


def _remove(version: Path) -> None:
    """Delete a version at once, so that no reader finds a part of it; a crash leaves a folder that is removed later."""
    aside = version.with_name(UNFINISHED)
    if version != aside:
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(version, aside)
    shutil.rmtree(aside)


def _remove_old_versions(folder: Path, lineage: list[str]) -> None:
    """Keep the newest version of each of the last tasks, so that edits cost none of them, and some others.

    Ancestors of the current version come before those of other branches, and the newest first.
    """
    intact = intact_versions(folder)
    lineages = _lineages(intact)
    ancestors = [name for name in intact if continues(lineage, lineages[name])]
    ancestors.sort(key=lambda name: -len(lineages[name]))
    others = sorted(intact.keys() - set(ancestors), key=lambda name: intact[name]["tasks"][-1].learned)
    of_tasks: dict[int, str] = {}  # by the number of tasks
    for name in ancestors:
        of_tasks.setdefault(len(intact[name]["tasks"]), name)
    newest_of_tasks = list(of_tasks.values())
    rest = [name for name in (*ancestors, *reversed(others)) if name not in newest_of_tasks]
    for name in (*newest_of_tasks[MAX_VERSIONS:], *rest[MAX_VERSIONS:]):
        _remove(version_path(folder, name))
