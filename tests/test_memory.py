"""The memory: uniform reservoir, last-k tasks, budget, and what happens to dropped samples."""

from __future__ import annotations

import pytest
import torch

from recollect.errors import UserError
from recollect.memory import Memory
from recollect.rng import Key


def offer(memory: Memory, values: torch.Tensor, rng: torch.Generator, task: int = 0) -> None:
    rows, slots = memory.admit(len(values), rng)
    images = values[rows].to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    memory.write(slots, images, values[rows], task)


def test_the_reservoir_is_uniform() -> None:
    """300 samples in batches of 7 offered to 30 slots, 300 times: each is held with probability 0.1."""
    trials, num, capacity = 300, 300, 30
    held = torch.zeros(num)
    pairs = torch.zeros(2)
    for trial in range(trials):
        memory = Memory(capacity, (1, 2, 2))
        for step, values in enumerate(torch.arange(num).split(7)):
            offer(memory, values, (Key(trial) / step).generator())
        labels = memory.labels
        assert len(set(labels.tolist())) == capacity
        held[labels] += 1
        pairs += torch.tensor([(labels < 150).sum(), (labels >= 150).sum()])
    expected = trials * capacity / num
    chi_squared = float(((held - expected) ** 2 / (expected * (1 - capacity / num))).sum())
    assert 230 < chi_squared < 375  # 299 degrees of freedom: outside with probability below 0.005
    edges = held[:capacity].mean(), held[-capacity:].mean()  # where a reservoir that is off by one is off
    assert all(abs(float(edge) - expected) < 4 * (expected * 0.9 / capacity) ** 0.5 for edge in edges)
    assert abs(float(pairs[0] - pairs[1])) < 4 * (trials * capacity) ** 0.5


def test_the_memory_fills_up_before_it_replaces() -> None:
    memory = Memory(10, (1, 2, 2))
    assert memory.sample(4, Key(0).generator()) is None
    offer(memory, torch.arange(6), Key(0).generator())
    assert (len(memory), memory.num_offered) == (6, 6)
    assert memory.labels[:6].tolist() == list(range(6))
    found = memory.sample(20, Key(1).generator())
    assert found is not None
    assert sorted(found.labels.tolist()) == list(range(6))


def test_a_draw_has_no_sample_twice_and_depends_on_its_key() -> None:
    memory = Memory(50, (1, 2, 2))
    offer(memory, torch.arange(50), Key(0).generator())
    a, b, c = (memory.sample(20, Key(seed).generator()) for seed in (1, 1, 2))
    assert a is not None
    assert b is not None
    assert c is not None
    assert len(set(a.labels.tolist())) == 20
    assert torch.equal(a.labels, b.labels)
    assert not torch.equal(a.labels, c.labels)


@pytest.mark.parametrize("last_tasks", [1, 2, 3])
def test_only_the_last_tasks_are_stored_and_dropped_slots_are_zero(last_tasks: int) -> None:
    memory = Memory(9, (1, 2, 2), {"feature": torch.zeros(3)})
    for task in range(5):
        slots = memory.make_room(task, last_tasks, 100, (Key(0) / task).generator())
        n = len(slots)
        images = torch.full((n, 1, 2, 2), 10 + task, dtype=torch.uint8)
        memory.write(slots, images, torch.full((n,), task), task, feature=torch.full((n, 3), task + 1.0))
        held = memory.tasks[: len(memory)]
        expected = range(max(0, task - last_tasks + 1), task + 1)
        assert sorted(set(held.tolist())) == list(expected)
        assert len(memory) <= 9
        counts = [int((held == t).sum()) for t in expected]
        assert counts[:-1] == [9 // len(counts)] * (len(counts) - 1)
        assert sum(counts) == 9
        assert torch.equal(memory.images[: len(memory), 0, 0, 0], (held + 10).to(torch.uint8))
        assert torch.equal(memory.get_buffer("feature")[: len(memory), 0], held + 1.0)
        assert not memory.images[len(memory) :].any()
    slots = memory.make_room(5, last_tasks, 2, Key(0).generator())  # a task of two images: most slots fall free
    assert not memory.images[slots].any()
    assert not memory.images[len(memory) :].any()


def test_a_small_task_leaves_empty_slots_that_are_never_drawn() -> None:
    memory = Memory(9, (1, 2, 2))
    slots = memory.make_room(0, 1, 4, Key(0).generator())
    memory.write(slots, torch.ones(4, 1, 2, 2, dtype=torch.uint8), torch.ones(4, dtype=torch.int64), 0)
    found = memory.sample(9, Key(0).generator())
    assert found is not None
    assert len(found.labels) == len(memory) == 4
    assert bool(found.images.all())


def test_the_memory_counts_its_bytes_and_restores_its_state() -> None:
    memory = Memory(5, (3, 4, 4), {"feature": torch.zeros(7)})
    assert memory.num_bytes == 0
    rows, slots = memory.admit(3, Key(0).generator())
    memory.write(slots, torch.ones(3, 3, 4, 4, dtype=torch.uint8), rows, 0, feature=torch.ones(3, 7))
    assert memory.num_bytes == 3 * (48 + 8 + 8 + 28)
    other = Memory(5, (3, 4, 4), {"feature": torch.zeros(7)})
    other.load_state_dict(memory.state_dict())
    assert (len(other), other.num_offered) == (3, 3)
    assert torch.equal(other.images, memory.images)


def test_a_memory_without_capacity_is_refused() -> None:
    with pytest.raises(UserError, match="capacity must be positive, got 0"):
        Memory(0, (1, 2, 2))


@pytest.mark.parametrize("num", [2, 3, 5])
def test_a_reservoir_of_one_holds_each_of_a_few_equally_often(num: int) -> None:
    """Where an error of one in the count shows most: the newest of n is held in 1/n of the trials."""
    trials = 2000
    held = torch.zeros(num)
    for trial in range(trials):
        memory = Memory(1, (1, 2, 2))
        for step in range(num):
            offer(memory, torch.tensor([step]), (Key(trial) / step).generator())
        held[memory.labels[0]] += 1
    assert bool(((held / trials - 1 / num).abs() < 4 * (1 / num * (1 - 1 / num) / trials) ** 0.5).all())


def test_slots_freed_by_a_purge_are_counted_only_when_filled() -> None:
    memory = Memory(12, (1, 2, 2))
    rng = torch.Generator().manual_seed(0)
    memory.admit(100, rng)
    memory.images.zero_()
    memory.set_extra_state(torch.tensor([0, 100]))  # all samples taken out
    for offered in range(400):
        rows, slots = memory.admit(1, rng)
        memory.write(slots, torch.ones(len(rows), 1, 2, 2, dtype=torch.uint8), torch.zeros(len(rows)).long(), 1)
        assert int(memory.images.flatten(1).any(dim=1).sum()) == len(memory), offered
    assert len(memory) == 12
