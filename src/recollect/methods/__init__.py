"""One file per method; `learner.py` is the contract."""

from recollect.methods.learner import (
    BaselineConfig, Learner, Method, Parameters, Phase, Schedule, Scores, Setup, Update, Validation, methods,
)  # fmt: skip

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
