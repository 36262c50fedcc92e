"""A memory of past samples under a budget: named tensors filled by a reservoir or with the last k tasks.

Slots are allocated once, so the state has the same shape whatever was stored; a dropped sample's slot is zeroed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from recollect.device import to_device
from recollect.distributed.shard import UNSHARDED, Shard
from recollect.errors import UserError
from recollect.streams import Samples


class Memory(nn.Module):
    """At most `capacity` samples: uint8 image, label, task, and the named `fields`, given as one example each."""

    images: Tensor
    labels: Tensor
    tasks: Tensor

    def __init__(self, capacity: int, image_shape: tuple[int, ...], fields: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        if capacity < 1:
            raise UserError(
                f"memory capacity must be positive, got {capacity}; a method without memory is finetune or rfe"
            )
        self.capacity = capacity
        self.size = 0
        self.num_offered = 0
        self.shard: Shard = UNSHARDED
        """Set for the duration of a step that several ranks compute: they offer and draw together."""
        try:
            self.register_buffer("images", torch.zeros(capacity, *image_shape, dtype=torch.uint8))
        except RuntimeError as error:
            raise UserError(f"no room for {capacity} images of shape {image_shape}; give a smaller memory") from error
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("tasks", torch.zeros(capacity, dtype=torch.int64))
        self._fields = tuple(fields or ())
        for name, example in (fields or {}).items():
            self.register_buffer(name, torch.zeros(capacity, *example.shape, dtype=example.dtype))

    def __len__(self) -> int:
        return self.size

    @property
    def num_bytes(self) -> int:
        """Bytes of the samples held now."""
        return sum(buffer[: self.size].nbytes for buffer in self.buffers())

    def admit(self, num: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Offer `num` samples to the reservoir (Vitter's algorithm R); returns the rows kept and the slots they go to.

        After n offers each of them is held with probability capacity / n. Of rows meant for one slot the last wins.
        The rows of a shard are offered together with those of the other ranks; returned are those of this rank.
        """
        first, total = self.shard.position(num)
        counts = torch.arange(self.num_offered + 1, self.num_offered + total + 1)
        draws = torch.randint(0, 1 << 62, (total,), generator=rng) % counts
        slots = torch.where(counts <= self.capacity, counts - 1, draws).tolist()
        row_of_slot: dict[int, int] = {}
        for row, drawn in enumerate(slots):
            if drawn < self.capacity:
                slot = drawn if self.size == self.capacity else self.size  # free slots first, also after a purge
                self.size = max(self.size, slot + 1)
                row_of_slot[slot] = row
        self.num_offered += total
        rows = torch.tensor(list(row_of_slot.values()), dtype=torch.int64)
        own = (rows >= first) & (rows < first + num)
        return rows[own] - first, torch.tensor(list(row_of_slot), dtype=torch.int64)[own]

    def write(self, slots: Tensor, images: Tensor, labels: Tensor, tasks: Tensor | int, **values: Tensor) -> None:
        """Store samples in their slots, together with those of other ranks."""
        slots = to_device(slots, self.images.device)
        buffers = [self.images, self.labels, self.tasks, *map(self.get_buffer, self._fields)]
        tasks = torch.as_tensor(tasks, device=slots.device).expand(len(slots))
        columns = [images, labels, tasks, *(values[name] for name in self._fields)]
        columns = [column.to(buffer.dtype) for column, buffer in zip(columns, buffers, strict=True)]
        slots, *columns = self.shard.gather([slots, *columns])
        if len(slots):
            for buffer, column in zip(buffers, columns, strict=True):
                buffer[slots] = column

    def make_room(self, task: int, last_tasks: int, num_new: int, rng: torch.Generator) -> Tensor:
        """Keep only the last `last_tasks` tasks up to `task`, in equal numbers; returns up to `num_new` free slots."""
        stored_tasks = self.tasks[: self.size].tolist()
        tasks = sorted({t for t in stored_tasks if t > task - last_tasks} | {task})
        slots_per_task = self.capacity // len(tasks)
        keep: list[int] = []
        for old in tasks[:-1]:
            slots = torch.tensor([slot for slot, t in enumerate(stored_tasks) if t == old])
            keep += sorted(slots[torch.randperm(len(slots), generator=rng)[:slots_per_task]].tolist())
        order = torch.tensor(keep, dtype=torch.int64, device=self.images.device)
        num_new = min(num_new, self.capacity - len(keep))
        for buffer in self.buffers():
            rows = buffer[order].clone()
            buffer.zero_()
            buffer[: len(keep)] = rows
        self.size = len(keep) + num_new
        return torch.arange(len(keep), self.size)

    def sample(self, num: int, rng: torch.Generator) -> Samples | None:
        """`num` different samples, or all of them where fewer are held; None while empty."""
        slots, shard = self.shard.split(torch.randperm(self.size, generator=rng)[: self.shard.global_size(num)])
        return self.at(to_device(slots, self.images.device), shard) if len(slots) else None

    def at(self, slots: Tensor, shard: Shard = UNSHARDED) -> Samples:
        """The samples in the given slots."""
        values = {name: self.get_buffer(name)[slots] for name in self._fields}
        return Samples(self.images[slots], self.labels[slots], self.tasks[slots], values, slots, shard)

    def widen(self, field: str, size: int) -> None:
        """Give a field of vectors room for `size` values each; what was stored keeps its place, the rest is zero."""
        stored = self.get_buffer(field)
        wider = stored.new_zeros(self.capacity, size)
        wider[:, : stored.shape[1]] = stored
        self.register_buffer(field, wider)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.size, self.num_offered])

    def set_extra_state(self, state: Tensor) -> None:
        self.size, self.num_offered = state.tolist()
