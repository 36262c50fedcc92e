"""Run configs and run folders."""

from recollect.runs.config import RunConfig, available_options, resolve
from recollect.runs.folder import RunFolder, read_json
from recollect.runs.run import begun, build_learner, run
from recollect.runs.settings import describe, parse

__all__ = [
    "RunConfig",
    "RunFolder",
    "available_options",
    "begun",
    "build_learner",
    "describe",
    "parse",
    "read_json",
    "resolve",
    "run",
]
