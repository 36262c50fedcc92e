"""Accuracy matrices, what follows from them, and feature drift."""

from recollect.metrics.accuracy import Matrix, summarise
from recollect.metrics.drift import rmse, squared_error

__all__ = ["Matrix", "rmse", "squared_error", "summarise"]
