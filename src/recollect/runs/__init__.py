"""Run configs and run folders."""

from recollect.results import find_results
from recollect.runs.config import RunConfig, available_options, resolve
from recollect.runs.folder import RunFolder
from recollect.runs.loading import LoadedRun, load_run
from recollect.runs.run import command_of, read_run, resolve_precision, run
from recollect.runs.settings import describe, parse

__all__ = [
    "LoadedRun",
    "RunConfig",
    "RunFolder",
    "available_options",
    "command_of",
    "describe",
    "find_results",
    "load_run",
    "parse",
    "read_run",
    "resolve",
    "resolve_precision",
    "run",
]
