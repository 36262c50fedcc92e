"""The commands, one file for each group. Heavy imports wait until a command runs."""

from cyclopts import Group

from recollect.cli.base import app
from recollect.cli.commands import audit, classes, model, prediction, run, serving, stream, sweep

__all__ = ["audit", "classes", "model", "prediction", "run", "serving", "stream", "sweep"]

EVERYDAY = ("learn", "predict", "check", "inspect", "serve", "rename", "merge", "forget", "rollback", "export", "audit")
MODELS, EXPERIMENTS = Group("Models", sort_key=0), Group("Experiments", sort_key=1)
for _name in app:
    if _name in EVERYDAY:
        app[_name].group, app[_name].sort_key = MODELS, EVERYDAY.index(_name)
    elif not _name.startswith("-"):
        app[_name].group = EXPERIMENTS
