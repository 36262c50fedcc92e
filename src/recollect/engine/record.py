"""What a run has measured so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any

import msgspec

from recollect.engine.evaluation import Accuracies, Drift


@dataclass
class Record:
    """Plain numbers, saved with every checkpoint."""

    matrices: dict[str, list[list[float | None]]] = field(default_factory=dict)
    at_start: dict[str, list[float | None]] = field(default_factory=dict)
    drifted: list[list[float | None]] = field(default_factory=list)
    rectified: list[list[float | None]] = field(default_factory=list)
    scatter: list[dict[str, Any]] = field(default_factory=list)
    """Of each task: its original features on their principal axes, and drifted and rectified ones after each later."""
    seconds: dict[str, float] = field(default_factory=dict)
    num_images: int = 0
    validation: dict[str, float | None] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def spend(self, what: str, since: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + perf_counter() - since

    def add_validation(self, accuracies: Accuracies) -> None:
        """The mean accuracies over tasks that have validation images."""
        for name in ("til", "cil"):
            known = [value for value in accuracies[name] if value is not None]
            self.validation[name] = sum(known) / len(known) if known else None

    def add_drift(self, drifts: Sequence[Drift], num_tasks: int) -> None:
        """What was measured of every earlier task's features."""
        for matrix, row in (
            (self.drifted, [drift.drifted for drift in drifts]),
            (self.rectified, [drift.rectified for drift in drifts]),
        ):
            matrix += [[None] * num_tasks for _ in range(len(drifts) - len(matrix))]
            matrix.append([*row, *[None] * (num_tasks - len(row))])
        for points, drift in zip(self.scatter, drifts, strict=False):
            points["drifted"].append(drift.drifted_points)
            points["rectified"].append(drift.rectified_points)

    @classmethod
    def from_json(cls, values: dict[str, Any], num_tasks: int) -> Record:
        """As it was saved; anything of another shape is a ValueError."""
        unknown = values.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"a record has no {min(unknown)}")
        record = msgspec.convert(values, cls)
        for matrix in (*record.matrices.values(), record.drifted, record.rectified):
            if len(matrix) > num_tasks or any(len(row) != num_tasks for row in matrix):
                raise ValueError(f"a matrix of {num_tasks} tasks has as many columns, and no more rows")
        return record
