"""One file per method; `learner.py` is the contract."""

from recollect.methods.build import build_backbone, build_learner
from recollect.methods.learner import (
    BaselineConfig,
    CachedFunctions,
    Learner,
    Method,
    Parameters,
    Phase,
    Schedule,
    Scores,
    Setup,
    Update,
    Validation,
    methods,
)

__all__ = [
    "BaselineConfig",
    "CachedFunctions",
    "Learner",
    "Method",
    "Parameters",
    "Phase",
    "Schedule",
    "Scores",
    "Setup",
    "Update",
    "Validation",
    "build_backbone",
    "build_learner",
    "methods",
]
