"""Estimates of hours: repeatable, in proportion to the work, and with a guess for a GPU."""

from __future__ import annotations

import pytest

from recollect.runs import resolve
from recollect.sweeps import estimate as module
from recollect.sweeps.estimate import estimate


def test_one_slow_moment_does_not_change_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of the backbones are timed in turns, and the median of each counts."""
    turns: list[int] = []

    def seconds(trainer: module._Trainer) -> float:
        width = trainer.network[1].in_features
        turns.append(width)
        return 100.0 if len(turns) in (3, 4, 5, 6) else width / 32  # a first step, then two rounds under load

    monkeypatch.setattr(module._Trainer, "seconds", seconds)
    monkeypatch.setattr(module, "MIN_SECONDS", 0.0)
    settings = {"epochs": 2, "train_per_class": 10, "validation": 0.2}
    configs = [resolve("split-digits", "finetune", 0, settings | {"backbone.width": width}) for width in (2, 4)]
    narrow, wide, unknown = estimate([*configs, resolve("images", "finetune", 0)], "cpu", 1)
    assert unknown is None
    assert narrow is not None
    assert wide is not None
    assert turns == [turns[0], turns[1]] * (1 + module.MIN_ROUNDS)
    num_images = 10 * 10 * 0.8 * 2
    assert narrow.hours == pytest.approx(num_images * turns[0] / 32 / module.BATCH / 3600)
    assert wide.hours == pytest.approx(num_images * turns[1] / 32 / module.BATCH / 3600)


def test_hours_on_a_gpu_follow_from_operations_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResNet-18 takes 1.1 GFLOP per image of 32 x 32 pixels forward, and twice as many backward."""
    monkeypatch.setattr(module, "MIN_SECONDS", 0.0)
    settings = {"backbone.width": 8, "epochs": 1, "validation": 0.0}
    configs = [
        resolve("split-cifar100", "finetune", 0, settings | {"batch_size": size}, precision="fp32")
        for size in (10_000, 1)
    ]
    by_operations, by_steps = estimate(configs, "cpu", 1)
    assert by_operations is not None
    assert by_steps is not None
    flops = 3 * 1.1e9 * (8 / 64) ** 2
    assert by_operations.gpu_hours == pytest.approx(50_000 * flops / module.GPU_FLOPS / 3600, rel=0.1)
    assert by_steps.gpu_hours == pytest.approx(50_000 * module.GPU_STEP_SECONDS / 3600)
