"""How the versions of a model folder descend from each other."""

from __future__ import annotations

import shutil
from pathlib import Path

from recollect.deploy.model import Model, lineage_of
from recollect.deploy.versions import VersionFile, list_versions, read_version, write_pointer, write_version
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


def continues(lineage: list[str], other: list[str]) -> bool:
    """Whether a model comes from another, or is the same."""
    return lineage[: len(other)] == other


def find_version(folder: Path, to: str, current: str | None) -> str:
    """The version that ends with the task `to`, or has that name.

    If several end with the task, the newest of those that the current version continues is meant.
    """
    intact = intact_versions(folder)
    lineages = {name: lineage_of(about["tasks"]) for name, about in intact.items()}
    matches = [name for name, about in intact.items() if to in (name, about["tasks"][-1].name)]
    ancestors = [name for name in matches if current in lineages and continues(lineages[current], lineages[name])]
    if ancestors:
        return max(ancestors, key=lambda name: len(lineages[name]))
    if len(matches) != 1:
        listed = ", ".join(f"{name} ({about['tasks'][-1].name})" for name, about in intact.items()) or "none"
        what = f"several versions end with {to!r}" if matches else f"there is no version that ends with {to!r}"
        raise UserError(f"{what}; choose one of: {listed}")
    return matches[0]


def make_current(folder: Path, model: Model) -> str:
    """Make a model the current version, written unless it is there already; returns its name."""
    lineages = {name: lineage_of(about["tasks"]) for name, about in intact_versions(folder).items()}
    name = next((name for name, lineage in lineages.items() if lineage == model.lineage), None)
    if name is None:
        name = write_version(folder, model)
    write_pointer(folder, name)
    _remove_old_versions(folder, model.lineage)
    return name


def _remove_old_versions(folder: Path, lineage: list[str]) -> None:
    """Keep `MAX_VERSIONS`: ancestors of the current version first, the newest first."""
    intact = intact_versions(folder)
    lineages = {name: lineage_of(about["tasks"]) for name, about in intact.items()}
    ancestors = [name for name in intact if continues(lineage, lineages[name])]
    ancestors.sort(key=lambda name: -len(lineages[name]))
    others = sorted(intact.keys() - set(ancestors), key=lambda name: intact[name]["tasks"][-1].learned)
    for name in [*ancestors, *reversed(others)][MAX_VERSIONS:]:
        shutil.rmtree(version_path(folder, name))
