"""How the versions of a model folder descend from each other."""

from __future__ import annotations

import shutil
from pathlib import Path

from recollect.deploy.versions import VersionFile, list_versions, read_version
from recollect.errors import UserError

MAX_VERSIONS = 5


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


def lineage_of(about: VersionFile) -> list[str]:
    """Identifiers of the learns that led to a version, oldest first."""
    return [task.learn for task in about["tasks"]]


def continues(lineage: list[str], other: list[str]) -> bool:
    """Whether a model comes from another, or is the same."""
    return lineage[: len(other)] == other


def find_version(folder: Path, to: str, current: str | None) -> str:
    """The version that ends with the task `to`, or has that name.

    If several end with the task, the one that the current version continues is meant.
    """
    intact = intact_versions(folder)
    matches = [name for name, about in intact.items() if to in (name, about["tasks"][-1].name)]
    lineage = lineage_of(intact[current]) if current in intact else []
    ancestors = [name for name in matches if continues(lineage, lineage_of(intact[name]))]
    if len(ancestors or matches) != 1:
        listed = ", ".join(f"{name} ({about['tasks'][-1].name})" for name, about in intact.items()) or "none"
        what = f"several versions end with {to!r}" if matches else f"there is no version that ends with {to!r}"
        raise UserError(f"{what}; choose one of: {listed}")
    (name,) = ancestors or matches
    return name


def remove_old_versions(folder: Path, lineage: list[str]) -> None:
    """Keep `MAX_VERSIONS`: ancestors of the current version first, the newest first."""
    intact = intact_versions(folder)
    ancestors = [name for name, about in intact.items() if continues(lineage, lineage_of(about))]
    ancestors.sort(key=lambda name: -len(intact[name]["tasks"]))
    others = sorted(intact.keys() - set(ancestors), key=lambda name: intact[name]["tasks"][-1].learned)
    for name in [*ancestors, *reversed(others)][MAX_VERSIONS:]:
        shutil.rmtree(version_path(folder, name))
