"""Timing pieces of work that take turns, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import torch

Work = Callable[[], None]
Times = dict[str, list[float]]


def measure_seconds(work: Work) -> float:
    _wait_for_device()
    started = time.perf_counter()
    work()
    _wait_for_device()
    return time.perf_counter() - started


def _wait_for_device() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def time_in_turn(works: Mapping[str, Work], num_rounds: int) -> Times:
    """Seconds per round of each piece of work, after one round to warm up."""
    times: Times = {name: [] for name in works}
    for number in range(num_rounds + 1):
        for name, work in works.items():
            seconds = measure_seconds(work)
            if number:
                times[name].append(seconds)
    return times


def time_with_unit(unit: Work, works: Mapping[str, Work], num_rounds: int) -> tuple[Times, Times]:
    """Seconds per round of each piece of work, and of the unit of work done just before it."""
    times: Times = {name: [] for name in works}
    unit_times: Times = {name: [] for name in works}
    for number in range(num_rounds + 1):
        for name, work in works.items():
            unit_seconds, seconds = measure_seconds(unit), measure_seconds(work)
            if number:
                unit_times[name].append(unit_seconds)
                times[name].append(seconds)
    return times, unit_times


def report_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
