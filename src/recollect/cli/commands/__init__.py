"""The commands, one file for each group. Heavy imports wait until a command runs."""

from recollect.cli.commands import audit, model, run, stream, sweep

__all__ = ["audit", "model", "run", "stream", "sweep"]
