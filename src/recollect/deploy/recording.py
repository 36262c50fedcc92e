"""Recording the first check of a task: the only writing that `check` does, under a lock that it holds briefly."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path

from recollect.deploy.history import continues, intact_versions, version_path
from recollect.deploy.model import Model, lineage_of
from recollect.deploy.versions import Checks, add_checks
from recollect.storage import LinkError, LockedError, lock_folder


def record_checks(folder: Path, model: Model, new: Checks, *, wait: bool = False) -> None:
    """Record first checks of a model's newest task in its version, and in those that were learned from it meanwhile.

    If the folder cannot be written, or a learn is running and is not waited for, there is a warning instead.
    """
    try:
        with lock_folder(folder, wait=wait):
            versions = _versions_of(folder, model)
            for name in versions:
                add_checks(version_path(folder, name), new)
        problem = "" if versions else "its version was removed meanwhile"
    except LockedError:
        problem = f"a learn is running in {folder}"
    except (OSError, LinkError) as error:  # read-only, or a mounted volume that consists of links
        if isinstance(error, OSError) and error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        problem = f"{folder} cannot be written"
    if problem:
        warnings.warn(f"not recorded because {problem}: later checks cannot compare with this one", stacklevel=3)


def _versions_of(folder: Path, model: Model) -> list[str]:
    """The versions that are the model or continue it, and have the same classes in the task that was its newest."""
    index, units = len(model.tasks) - 1, model.tasks[-1].units
    return [
        name
        for name, about in intact_versions(folder).items()
        if continues(lineage_of(about["tasks"]), model.lineage) and about["tasks"][index].units == units
    ]
