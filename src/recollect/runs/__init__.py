"""Run configs and run folders."""

from recollect.results import find_results
from recollect.runs.config import RunConfig, available_options, resolve
from recollect.runs.folder import RunFolder
from recollect.runs.run import begun, command_of, run, settled
from recollect.runs.settings import describe, parse

__all__ = [
    "RunConfig",
    "RunFolder",
    "available_options",
    "begun",
    "command_of",
    "describe",
    "find_results",
    "parse",
    "resolve",
    "run",
    "settled",
]
