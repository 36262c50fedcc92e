"""Several batches at a time: in order, as the caller would read them, and nothing left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from recollect.reading import read_batches

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_results_keep_the_order_of_batches_that_end_in_another() -> None:
    def read(index: int) -> tuple[int, str, int]:
        time.sleep(0.02 * (index % 3 == 0))
        return index, threading.current_thread().name, torch.get_num_threads()

    indices, names, threads = zip(*read_batches(read, range(9), CPU), strict=True)

    assert indices == tuple(range(9))
    assert len(set(names)) > 1
    assert set(threads) == {1}
    assert torch.get_num_threads() == 4


def test_batches_are_taken_as_they_are_read() -> None:
    taken = []

    def batches() -> Iterator[int]:
        for index in range(100):
            taken.append(index)
            yield index

    reading = read_batches(lambda index: index, batches(), CPU)
    next(reading)
    assert len(taken) <= 6
    reading.close()
    assert torch.get_num_threads() == 4


def test_a_single_batch_has_all_threads() -> None:
    assert list(read_batches(lambda _: torch.get_num_threads(), [0], CPU)) == [4]
    assert list(read_batches(lambda _: 0, [], CPU)) == []


@pytest.mark.parametrize("failing", [0, 5])
def test_a_failure_reaches_the_caller(failing: int) -> None:
    def read(index: int) -> None:
        if index == failing:
            raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        list(read_batches(read, range(8), CPU))
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("mode", ["gradients", "no_grad", "inference", "autocast"])
def test_modes_are_those_of_the_caller(mode: str) -> None:
    weight = torch.ones(2, 2, requires_grad=True)

    def read(x: Tensor) -> Tensor:
        return x @ weight

    context = {
        "gradients": torch.enable_grad(),
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
    }[mode]
    with context:
        outputs = list(read_batches(read, [torch.ones(1, 2)] * 3, CPU))

    for output in outputs:
        assert output.requires_grad == (mode in ("gradients", "autocast"))
        assert output.is_inference() == (mode == "inference")
        assert output.dtype == (torch.bfloat16 if mode == "autocast" else torch.float32)
