"""One file per method; `learner.py` is the contract."""

from recollect.methods.build import build_backbone, build_learner
from recollect.methods.choice import ChosenMethod, MethodFile, choose_method, registered_method, relative_to
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
    "ChosenMethod",
    "Learner",
    "Method",
    "MethodFile",
    "Parameters",
    "Phase",
    "Schedule",
    "Scores",
    "Setup",
    "Update",
    "Validation",
    "build_backbone",
    "build_learner",
    "choose_method",
    "methods",
    "registered_method",
    "relative_to",
]
