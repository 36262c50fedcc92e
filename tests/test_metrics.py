"""Figures of an accuracy matrix against the definitions, worked by hand."""

from __future__ import annotations

import pytest

from recollect.metrics import summarise


def test_metrics_of_a_full_matrix_equal_those_by_hand() -> None:
    matrix: list[list[float | None]] = [[90, 20, 10], [70, 80, 30], [75, 60, 85]]
    found = summarise(matrix, [12, 15, 18])
    assert found["average_accuracy"] == pytest.approx((75 + 60 + 85) / 3)
    assert found["incremental_accuracy"] == pytest.approx((90 + (70 + 80) / 2 + (75 + 60 + 85) / 3) / 3)
    assert found["backward_transfer"] == pytest.approx(((75 - 90) + (60 - 80)) / 2)
    assert found["forgetting"] == pytest.approx(((90 - 75) + (80 - 60)) / 2)
    assert found["forward_transfer"] == pytest.approx(((20 - 15) + (30 - 18)) / 2)


def test_forgetting_counts_from_the_best_a_task_ever_had() -> None:
    found = summarise([[50, None, None], [80, 60, None], [70, 65, 90]], [None] * 3)
    assert found["forgetting"] == pytest.approx(((80 - 70) + (60 - 65)) / 2)
    assert found["backward_transfer"] == pytest.approx(((70 - 50) + (65 - 60)) / 2)


def test_undefined_metrics_are_none() -> None:
    growing = summarise([[90, None], [70, 80]], [None, None])
    assert growing["forward_transfer"] is None
    assert growing["average_accuracy"] == 75
    joint = summarise([[None, None], [70, 80]], [None, None])
    assert joint["average_accuracy"] == 75
    assert joint["incremental_accuracy"] is joint["forgetting"] is joint["backward_transfer"] is None
    single = summarise([[90]], [10])
    assert single["average_accuracy"] == single["incremental_accuracy"] == 90
    assert single["forgetting"] is single["backward_transfer"] is single["forward_transfer"] is None
