"""The training loop, both evaluations, checkpoints, and the one file that knows devices."""

from recollect.engine.loop import Engine
from recollect.engine.observer import Observer
from recollect.engine.record import Record
from recollect.engine.runtime import Runtime
from recollect.engine.stop import StopRequest, catch_signals
from recollect.engine.training import Training

__all__ = ["Engine", "Observer", "Record", "Runtime", "StopRequest", "Training", "catch_signals"]
