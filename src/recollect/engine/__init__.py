"""The training loop, both evaluations, checkpoints, and the one file that knows devices."""

from recollect.engine.loop import Engine, Record, Training
from recollect.engine.observer import Observer
from recollect.engine.runtime import Runtime

__all__ = ["Engine", "Observer", "Record", "Runtime", "Training"]
