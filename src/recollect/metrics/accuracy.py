"""What follows from an accuracy matrix R[t][i], in percent: after task t, on task i. T tasks.

average accuracy      mean_i R[T][i]
incremental accuracy  mean over t of the mean of row t up to t
backward transfer     mean_{i<T} (R[T][i] - R[i][i])
forgetting            mean_{i<T} (max_{i≤t<T} R[t][i] - R[T][i])
forward transfer      mean_{i>1} (R[i-1][i] - b_i), b_i the accuracy on task i at initialisation

Whatever needs a cell that was not measured is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = list[float | None]
Matrix = list[Row]


def summarise(matrix: Matrix, at_start: Sequence[float | None]) -> dict[str, Any]:
    """The matrix and the five figures that follow from it."""
    return {
        "matrix": matrix,
        "average_accuracy": average_accuracy(matrix),
        "incremental_accuracy": incremental_accuracy(matrix),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "forward_transfer": forward_transfer(matrix, at_start),
    }


def average_accuracy(matrix: Matrix) -> float | None:
    return _mean(matrix[-1])


def incremental_accuracy(matrix: Matrix) -> float | None:
    return _mean([_mean(row[: t + 1]) for t, row in enumerate(matrix)])


def backward_transfer(matrix: Matrix) -> float | None:
    return _mean([_difference(matrix[-1][i], matrix[i][i]) for i in range(len(matrix) - 1)])


def forgetting(matrix: Matrix) -> float | None:
    last = len(matrix) - 1
    return _mean([_difference(_largest([matrix[t][i] for t in range(i, last)]), matrix[last][i]) for i in range(last)])


def forward_transfer(matrix: Matrix, at_start: Sequence[float | None]) -> float | None:
    return _mean([_difference(matrix[i - 1][i], at_start[i]) for i in range(1, len(matrix))])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _largest(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if len(known) == len(values) else None


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
