"""Several batches at a time: in order, as the caller would read them, and nothing left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from recollect.core import folded
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


@pytest.mark.parametrize(("threads", "each"), [(2, 1), (8, 1), (9, 2), (12, 2), (15, 2), (17, 3)])
def test_threads_are_shared_among_at_most_eight_batches(threads: int, each: int) -> None:
    torch.set_num_threads(threads)

    used = list(read_batches(lambda _: (threading.get_ident(), torch.get_num_threads()), range(64), CPU))

    assert {number for _, number in used} == {each}
    assert len({name for name, _ in used}) <= threads // each <= 8
    assert torch.get_num_threads() == threads


def test_other_threads_of_the_process_keep_their_number() -> None:
    numbers = []

    def read(index: int) -> int:
        if index == 3:  # a thread that uses torch for the first time
            thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
            thread.start()
            thread.join()
        return index

    assert list(read_batches(read, range(8), CPU)) == list(range(8))
    assert numbers == [4]


def test_a_module_that_stores_its_features_is_read_by_one_thread_at_a_time() -> None:
    class Stores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.features = x * 2
            time.sleep(0.005)
            return self.features + (1 if len(x) > 100 else 0)  # cannot be traced

    read = folded(Stores(), (1,))
    outputs = list(read_batches(read, [torch.full((2, 1), float(index)) for index in range(12)], CPU))

    assert [int(output[0]) for output in outputs] == [2 * index for index in range(12)]


def test_a_process_that_may_start_no_more_threads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    start, number = threading.Thread.start, 0

    def limited(thread: threading.Thread) -> None:
        nonlocal number
        number += 1
        if number > 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(read_batches(lambda index: index, range(8), CPU))
    assert torch.get_num_threads() == 4
