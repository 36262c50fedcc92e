"""Accuracy matrices, what follows from them, and feature drift."""

from recollect.metrics.accuracy import Matrix, summarise
from recollect.metrics.drift import on_principal_axes, rmse, shown_rows, squared_error

__all__ = ["Matrix", "on_principal_axes", "rmse", "shown_rows", "squared_error", "summarise"]
