"""The commands audit and purge."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from recollect.cli.base import Flag, app


@app.command
def audit(
    folder: Path,
    *,
    against: Path | None = None,
    expect: Literal["none", "previous", "reservoir"] | None = None,
    method: str | None = None,
    json: Flag = False,
) -> None:
    """List everything that a run or model folder stores, checkpoints included: all tensors and all training samples.

    It does not show what the weights may reveal about training images.

    Parameters
    ----------
    folder
        The run or model folder.
    against
        A folder of images to search for in all files: as bytes or numbers, normalised, mirrored, shifted or with noise.
    expect
        Fail (exit code 1) unless the folder contains no samples (none), samples of the last tasks only (previous), or
        no more than the memory's capacity (reservoir); with --against also if an image is found elsewhere.
    method
        The Python file of the run's method, if it comes from one, to name the roles of its tensors; the file is run.
    json
        Print the complete list as JSON.
    """
    from recollect.cli.console import stdout
    from recollect.cli.rendering.audit import show_audit

    sys.exit(show_audit(stdout(), folder, against, expect, method, as_json=json))


@app.command
def purge(folder: Path, *, task: int) -> None:
    """Remove a task's samples from every checkpoint of a run, verified by the audit.

    Parameters
    ----------
    folder
        The run folder.
    task
        The task's number, from 1.
    """
    from recollect.audit import purge as purge_task

    num = purge_task(folder, task)
    print(f"{num} samples of task {task} removed; the audit finds none left.")
