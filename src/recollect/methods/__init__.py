"""One file per method; `learner.py` is the contract."""

from recollect.methods.learner import (
    BaselineConfig,
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
    "Learner",
    "Method",
    "Parameters",
    "Phase",
    "Schedule",
    "Scores",
    "Setup",
    "Update",
    "Validation",
    "methods",
]
