"""What tests of several packages share."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from recollect.cli import main


def recollect(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process, which saves the seconds that importing torch takes."""
    command = ["recollect", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    with (
        chdir(cwd) if cwd else nullcontext(),
        mock.patch.object(sys, "argv", command),
        warnings.catch_warnings(action="default"),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    stdout, stderr = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(command, code, stdout, stderr)


def recollect_process(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own, as a shell does."""
    command = [sys.executable, "-m", "recollect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)
