"""The commands, one file for each group. Heavy imports wait until a command runs."""

from recollect.cli.commands import audit, classes, model, prediction, run, serving, stream, sweep

__all__ = ["audit", "classes", "model", "prediction", "run", "serving", "stream", "sweep"]
