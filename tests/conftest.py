"""Shared fixtures. Shapes in the signatures of core, nets and streams are checked while tests run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

CHECKED = ["core.auxiliary", "core.identity", "core.statistics", "core.objectives", "core.retrospector", "core.rfe"]
CHECKED += ["nets.network", "streams.pixels"]
_hook = install_import_hook([f"recollect.{module}" for module in CHECKED], "beartype.beartype")

import torch  # noqa: E402

from recollect.engine import Engine, Runtime, Training  # noqa: E402
from recollect.engine.cpu_faults import survives_bf16  # noqa: E402
from recollect.methods import Learner, Schedule, Setup, methods  # noqa: E402
from recollect.nets import Network  # noqa: E402
from recollect.nets.convnet import ConvNet  # noqa: E402
from recollect.rng import Key  # noqa: E402
from recollect.streams import Stream, stream_from_tensors  # noqa: E402

if not survives_bf16():  # mixed precision is tested here too, with the instructions that work
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
    survives_bf16.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest go first, so that no process is left alone with them at the end."""
    items.sort(key=lambda item: item.path.name not in ("test_demo.py", "test_cluster.py"))


@pytest.fixture(autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Downloads and caches go to a fresh folder."""
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("RECOLLECT_DATA", str(folder))
    return folder


def make_stream(
    sizes: tuple[int, ...] = (2, 2), per_class: int = 10, size: int = 16, channels: int = 3, seed: int = 0
) -> Stream:
    """Random images whose brightness tells the class, in tasks of the given sizes."""
    num_classes = sum(sizes)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_classes).repeat_interleave(per_class)
    noise = torch.randint(0, 60, (len(labels), channels, size, size), generator=generator)
    images = (noise + (labels * 180 // max(num_classes - 1, 1))[:, None, None, None]).to(torch.uint8)
    names = [str(c) for c in range(num_classes)]
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    tasks = [names[start : start + n] for start, n in zip(starts, sizes, strict=True)]
    return stream_from_tensors(images, labels, images.flip(0), labels.flip(0), tasks=tasks, crop_padding=2)


def make_learner(name: str, stream: Stream, *, epochs: int = 1, seed: int = 0, backbone: torch.nn.Module | None = None,
                 fixed_heads: tuple[int, ...] = (), **options: Any) -> Learner[Any]:  # fmt: skip
    """A small learner of the named method."""
    import dataclasses

    method = methods()[name]
    small = {"memory": 8, "auxiliary_dim": 8, "projection_dim": 4} | options
    known = {field.name for field in dataclasses.fields(method.config)}
    config = dataclasses.replace(method.config, **{k: v for k, v in small.items() if k in known})
    key = Key(seed)
    if backbone is None:
        with key.initialising():
            backbone = ConvNet(stream.image_shape[0], 4)
    return method.learner(
        Network(backbone, key, fixed_heads), config, Setup(stream.image_shape, Schedule(epochs, 1e-2), key)
    )


def teach(learner: Learner[Any], stream: Stream, *, seed: int = 0, precision: str = "fp32", **options: Any) -> Engine:
    """Run the engine over a stream, for as many epochs as the learner was made for."""
    training = Training(epochs=learner.setup.schedule.epochs, learning_rate=1e-2, batch_size=8)
    engine = Engine(learner, stream, training, Runtime.choose("cpu", precision), seed, **options)
    engine.run()
    return engine


@pytest.fixture
def tiny() -> Stream:
    return make_stream()


@pytest.fixture(autouse=True)
def untouched_global_generator() -> None:
    """No test depends on what another drew from torch's global generator."""
    torch.manual_seed(0)
