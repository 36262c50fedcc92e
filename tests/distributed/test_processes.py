"""One run across processes: replicas are the same bits, the batch and the memory are global, one process writes."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support import make_learner, make_stream
from torch import Tensor, nn
from torch.multiprocessing import ProcessExitedException, spawn

from recollect.distributed.launch import Launch
from recollect.distributed.shard import Shard
from recollect.distributed.world import World, join_world
from recollect.engine import Engine, Runtime, Training
from recollect.errors import UserError
from recollect.memory import Memory
from recollect.methods import BaselineConfig, Learner, Phase, Schedule, Setup, methods
from recollect.methods.learner import Update
from recollect.nets import Network, as_backbone
from recollect.rng import Key
from recollect.streams import Batch, Pixels, Stream, TaskInfo

NAMES = sorted(methods())
MEMORY = 9
BATCH = 7  # shares of 3 and 4; each task's 24 images end in a batch of 3, too small for two
TRAINING = Training(epochs=2, learning_rate=1e-2, batch_size=BATCH)


def flat_backbone(stream: Stream) -> nn.Module:
    """Without BatchNorm, so that shares compute what the whole batch does."""
    with Key(5).initialising():
        return as_backbone(nn.Sequential(nn.Flatten(), nn.Linear(768, 6)), stream.image_shape)


def learn(learner: Learner[Any], runtime: Runtime, stream: Stream) -> dict[str, Tensor]:
    Engine(learner, stream, TRAINING, runtime, 3).run()
    return {name: tensor.contiguous().clone() for name, tensor in learner.state_dict().items()}


def stream_of_two() -> Stream:
    return make_stream((2, 2), per_class=14)


class Watched:
    """An update that keeps the gradients that Adam was given."""

    def __init__(self, update: Update, seen: list[list[Tensor]]) -> None:
        self.update, self.seen, self.gradients = update, seen, update.gradients

    def __call__(self, loss: Tensor, edit: Callable[[list[Tensor]], None] | None = None) -> None:
        def look(gradients: list[Tensor]) -> None:
            if edit is not None:
                edit(gradients)
            self.seen.append([gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients])

        self.update(loss, look)


def first_gradients(name: str, runtime: Runtime) -> dict[str, Tensor]:
    """Of the first step of each phase of the second task, where weights have hardly moved."""
    stream = stream_of_two()
    learner = make_learner(name, stream, memory=MEMORY, backbone=flat_backbone(stream), retrospect_learning_rate=1e-6)
    learner.setup = dataclasses.replace(learner.setup, schedule=Schedule(1, 1e-6))
    found: dict[str, list[list[Tensor]]] = {}
    phases = learner.phases

    def watched(task: TaskInfo) -> Iterator[Phase]:
        for phase in phases(task):
            seen = found.setdefault(f"{task.index}.{phase.name}", [])

            def step(batch: Batch, update: Update, inner: Any = phase.step, seen: Any = seen) -> None:
                inner(batch, Watched(update, seen))

            yield dataclasses.replace(phase, step=step)

    learner.phases = watched  # type: ignore[method-assign]
    learn(learner, runtime, stream)
    last = str(len(stream.tasks) - 1)
    return {f"{k}.{i}": g for k, seen in found.items() if k.startswith(last) for i, g in enumerate(seen[0])}


class Selfish(Learner[BaselineConfig]):
    """Moves a tensor by its own share of the batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("brightness", torch.zeros(()))

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        yield self.classifier_phase(task, self.step, "seen")

    def step(self, batch: Batch, update: Update) -> None:
        self.get_buffer("brightness").add_(batch.x.mean())
        update(self.network.cross_entropy(self.network(batch.x), batch.y, "seen"))


def work(rank: int, size: int, port: int, folder: Path) -> None:
    """What each process does; all it found goes to files of its own."""
    with (folder / f"stderr.{rank}.txt").open("w") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    stream = stream_of_two()
    with join_world() as world:
        runtime = Runtime.choose("cpu", world=world)
        for name in NAMES if size == 2 else ["er", "rfe-b"]:
            state = learn(make_learner(name, stream, epochs=2, memory=MEMORY), runtime, stream)
            save_file(state, folder / f"{name}.{rank}.safetensors")
            if size == 2:
                save_file(first_gradients(name, runtime), folder / f"{name}.gradient.{rank}.safetensors")
        network = Network(flat_backbone(stream), Key(0))
        selfish = Selfish(network, BaselineConfig(), Setup(stream.image_shape, Schedule(1, 1e-2), Key(0)))
        try:
            learn(selfish, runtime, stream)
        except UserError as error:
            (folder / f"selfish.{rank}.txt").write_text(str(error))
        time.sleep(0.5 * (rank == 0))
        (folder / f"leaves.{rank}.txt").write_text(str(time.monotonic()))
    (folder / f"left.{rank}.txt").write_text(str(time.monotonic()))


def started(size: int, folder: Path) -> Path:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        spawn(work, (size, port, folder), nprocs=size)
    except ProcessExitedException as error:
        written = " ".join(path.read_text()[-2000:] for path in sorted(folder.glob("stderr.*")))
        pytest.fail(f"{error}: {' '.join(written.split())}", pytrace=False)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return started(2, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", NAMES)
def test_replicas_are_the_same_bits_and_share_one_memory(name: str, two: Path) -> None:
    first, second = (load_file(two / f"{name}.{rank}.safetensors") for rank in range(2))
    assert first.keys() == second.keys()
    assert [key for key in first if not torch.equal(first[key], second[key])] == []
    alone = learn(make_learner(name, stream_of_two(), epochs=2, memory=MEMORY), Runtime.choose("cpu"), stream_of_two())
    counts = [key for key in first if key.endswith("memory._extra_state")]
    for key in counts:
        size, num_offered = first[key].tolist()
        assert 0 < size <= MEMORY
        assert (size, num_offered) == tuple(alone[key].tolist())
        images = key.replace("_extra_state", "images")
        assert torch.equal(first[images], alone[images])  # the very samples that one process keeps
    assert bool(counts) == any(isinstance(part, Memory) for part in make_learner(name, stream_of_two()).modules())


def is_trained_again(name: str) -> bool:
    """Whether the method trains on a second task; some only take statistics of a frozen network then."""
    stream = stream_of_two()
    learner = make_learner(name, stream)
    for task in stream.tasks[:2]:
        learner.begin_task(task.info)
    return any(True for _ in learner.phases(stream.tasks[1].info))


@pytest.mark.parametrize("name", [name for name in NAMES if is_trained_again(name)])
def test_without_batchnorm_the_gradient_is_that_of_the_global_batch(name: str, two: Path) -> None:
    found = load_file(two / f"{name}.gradient.0.safetensors")
    whole = first_gradients(name, Runtime.choose("cpu"))
    assert found.keys() == whole.keys()
    assert any(bool(gradient.abs().max() > 1e-6) for gradient in whole.values())
    for key, gradient in whole.items():
        assert torch.allclose(found[key], gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()) + 1e-7), key


def test_three_processes_have_the_same_bits(tmp_path: Path) -> None:
    started(3, tmp_path)
    for name in ("er", "rfe-b"):
        first, *others = (load_file(tmp_path / f"{name}.{rank}.safetensors") for rank in range(3))
        assert all(torch.equal(first[key], other[key]) for other in others for key in first)


def test_processes_leave_together(two: Path) -> None:
    leaves, left = (
        [float((two / f"{what}.{rank}.txt").read_text()) for rank in range(2)] for what in ("leaves", "left")
    )
    assert min(left) >= max(leaves)


def test_a_method_whose_replicas_diverge_is_refused(two: Path) -> None:
    for rank in range(2):
        text = (two / f"selfish.{rank}.txt").read_text()
        assert "copies of Selfish differ after task 1 · fit, in brightness" in text
        assert "run it in one process" in text


def test_a_draw_that_is_not_sharded_is_augmented_the_same_on_every_rank() -> None:
    """16 samples and a batch of 32 on two ranks: as many rows as a shard, but not a shard."""
    memory, pixels = Memory(16, (3, 16, 16)), Pixels((0.5,) * 3, (0.5,) * 3)
    rows, slots = memory.admit(16, torch.Generator().manual_seed(0))
    memory.write(slots, torch.randint(0, 256, (16, 3, 16, 16), dtype=torch.uint8)[rows], torch.zeros(16), 0)
    shown = []
    for shard in (Shard(0, 16, 32, 0.5), Shard(16, 32, 32, 0.5)):
        memory.shard = shard
        past = memory.sample(16, torch.Generator().manual_seed(1))
        assert len(past.labels) == 16
        nothing = torch.zeros(0)
        batch = Batch(nothing, nothing, nothing, pixels, Key(0), shard=shard)
        shown.append(batch.augment(past, "view"))
    assert torch.equal(*shown)


def test_shards_cover_a_draw_or_every_rank_takes_all_of_it() -> None:
    shards = [Shard(0, 3, 7, 3 / 7), Shard(3, 7, 7, 4 / 7)]
    for num in (7, 14, 0):
        parts = [shard.split(torch.arange(num))[0] for shard in shards]
        assert all(shard.global_size(len(part)) == num for shard, part in zip(shards, parts, strict=True))
        assert torch.cat(parts).sort().values.tolist() == list(range(num))
    values = torch.randn(5)  # a memory that holds fewer than the batch
    assert all(torch.equal(shard.split(values)[0], values) for shard in shards)
    weighted = sum(shard.weight * shard.split(values)[0].mean() for shard in shards)
    assert float(weighted) == pytest.approx(float(values.mean()))


def test_random_values_per_row_are_those_of_one_process() -> None:
    """A method draws through its batch or samples, and each rank gets its own rows of one draw."""

    def sample(num: int) -> Tensor:
        return torch.rand(num, generator=torch.Generator().manual_seed(2))

    images, labels, pixels = torch.zeros(7, 1, 2, 2, dtype=torch.uint8), torch.arange(7), Pixels((0.5,), (0.5,))
    parts = []
    for shard in (Shard(0, 3, 7, 3 / 7), Shard(3, 7, 7, 4 / 7)):
        rows = slice(shard.start, shard.stop)
        batch = Batch(images[rows], images[rows].float(), labels[rows], pixels, Key(0), shard=shard)
        parts.append(batch.draw(sample))
    assert torch.equal(torch.cat(parts), sample(7))


def test_batches_too_small_for_the_processes_are_refused() -> None:
    world = World(Launch(world_size=2))
    world.check_batch_size(4)
    with pytest.raises(UserError, match="batch_size=3 cannot be sharded over 2 processes"):
        world.check_batch_size(3)
