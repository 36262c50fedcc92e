"""Run configs and run folders."""

from recollect.results import find_results
from recollect.runs.config import RunConfig, available_options, resolve
from recollect.runs.folder import RunFolder
from recollect.runs.run import command_of, load_run, resolve_precision, run
from recollect.runs.settings import describe, parse

__all__ = [
    "RunConfig",
    "RunFolder",
    "available_options",
    "command_of",
    "describe",
    "find_results",
    "load_run",
    "parse",
    "resolve",
    "resolve_precision",
    "run",
]
