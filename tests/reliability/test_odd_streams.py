"""Streams of many, tiny and oddly named tasks are learned, and invalid ones are refused."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from unittest import mock

import pytest
import torch

from recollect.errors import UserError
from recollect.runs import resolve, run
from recollect.streams import stream_from_tensors
from tests.support import make_learner, make_stream, recollect, teach


def resident() -> int:
    """Bytes of memory that this process holds now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_sixty_tasks_run_without_growing_memory() -> None:
    """Nothing but the model itself grows: resident memory after the last task is close to that after the twentieth."""
    stream = make_stream((1,) * 60, per_class=2)
    learner = make_learner("rfe", stream, identity="class-means")
    sizes: list[int] = []

    from recollect.engine import Observer

    class Watch(Observer):
        def event(self, kind: str, **fields: object) -> None:
            if kind == "task":
                sizes.append(resident())

    with pytest.warns(UserWarning, match="no validation images"):
        record = teach(learner, stream, observer=Watch()).record
    assert len(record.matrices["til"]) == 60
    grown = sum(tensor.nbytes for tensor in (*learner.parameters(), *learner.buffers()))
    assert sizes[-1] - sizes[19] < grown + 64 * 2**20  # what the allocator keeps; alone in a fresh process about 50


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("size", [16, 17, 64, 224])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_size_and_of_one_or_three_channels_are_learned(size: int, channels: int) -> None:
    stream = make_stream((2, 1), per_class=3, size=size, channels=channels)
    for name in ("rfe", "er"):
        matrix = teach(make_learner(name, stream), stream).record.matrices["til"]
        assert all(cell is not None for cell in matrix[-1])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tasks_of_one_image_and_of_ten_thousand_classes_are_learned() -> None:
    labels = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(1, 10_001)])
    images = torch.randint(0, 256, (len(labels), 1, 16, 16), dtype=torch.uint8)
    names = [["only"], [f"c{i}" for i in range(10_000)]]
    every = [name for task in names for name in task]
    stream = stream_from_tensors(
        images, labels, images[:50], labels[:50], tasks=names, class_names=every, validation=0.0
    )
    learner = make_learner("rfe", stream)
    matrix = teach(learner, stream, batch_size=500).record.matrices["cil"]
    assert learner.network.units(1) == slice(1, 10_001)
    assert all(cell is not None for cell in matrix[-1])


def test_invalid_streams_are_refused() -> None:
    images, labels = torch.zeros(4, 3, 16, 16, dtype=torch.uint8), torch.tensor([0, 0, 1, 1])
    names = {"class_names": ["a", "b"]}
    with pytest.raises(UserError, match="labels go up to 7 but there are 2 different class names"):
        stream_from_tensors(images, torch.tensor([0, 0, 1, 7]), images, labels, tasks=2, **names)
    with pytest.raises(UserError, match="labels count classes from 0"):
        stream_from_tensors(images, torch.tensor([0, 0, 1, -1]), images, labels, tasks=2, **names)
    with pytest.raises(UserError, match="labels go up to 1 but there are 1 different class names"):
        stream_from_tensors(images, labels, images, labels, tasks=2, class_names=["a", "a"])
    with pytest.raises(UserError, match="names each of its classes once"):
        stream_from_tensors(images, labels, images, labels, tasks=[["a"], ["b", "b"]], **names)
    with pytest.raises(UserError, match="training images must be uint8"):
        stream_from_tensors(torch.full((4, 3, 16, 16), float("nan")), labels, images, labels, tasks=2, **names)


def test_names_in_any_script_reach_the_run_folder(tmp_path: Path) -> None:
    images, labels = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8), torch.arange(12) % 2
    names = ["кошка", "犬 🐕"]
    stream = stream_from_tensors(images, labels, images, labels, tasks=2, class_names=names, validation=0.0)
    config = resolve("tensors", "finetune", 0, {"backbone": "convnet", "width": 2, "epochs": 1}, precision="fp32")
    with pytest.warns(UserWarning, match="no validation images"):
        run(config, tmp_path / "läuft", stream=stream, device="cpu")
    data = json.loads((tmp_path / "läuft" / "data.json").read_text(encoding="utf-8"))
    assert [task["classes"] for task in data["tasks"]] == [["кошка"], ["犬 🐕"]]


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days back and forth between any two events: the same result, and events in the order they came."""
    import datetime

    moments = random.Random(0)

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(moments.uniform(0, 2e9), tz)

    config = resolve("split-digits", "rfe", 0, {"train_per_class": 20, "epochs": 1, "width": 2, "retrospect_epochs": 1})
    whole = run(config, tmp_path / "whole", device="cpu")
    monkeypatch.setattr("recollect.runs.folder.datetime", Jumping)
    jumped = run(config, tmp_path / "jumped", device="cpu")
    assert (whole["til"], whole["cil"]) == (jumped["til"], jumped["cil"])
    events = [json.loads(line) for line in (tmp_path / "jumped" / "events.jsonl").read_text().splitlines()]
    assert [event["task"] for event in events if event["event"] == "task"] == [1, 2, 3, 4, 5]
    assert len({event["time"][:4] for event in events}) > 5


def test_more_threads_than_cores_work(tmp_path: Path) -> None:
    words = ["run", "--stream", "split-digits", "--method", "rfe", "--tasks", 2, "--train-per-class", 5]
    words += ["--set", "epochs=1", "retrospect_epochs=1", "backbone.width=2", "--out", tmp_path / "run", "--threads", 8]
    with mock.patch.object(torch, "set_num_threads", wraps=torch.set_num_threads) as used:
        done = recollect(*words)
    assert done.returncode == 0, done.stderr
    assert used.call_args_list[0] == mock.call(8)
