"""On a simulated accelerator everything runs and gives the CPU's numbers; what a real one would refuse is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.engine.simulated_device import NAME, is_supported, simulated_device
from tests.support import Plain, StopAt, StopError, make_learner, make_stream
from torch import Tensor, nn

from recollect import ContinualClassifier
from recollect.audit import purge, take_inventory
from recollect.core import RFE
from recollect.deploy import ModelStore
from recollect.engine import Engine, Runtime, Training, checkpoint
from recollect.engine.evaluation import plain_batches
from recollect.methods import Learner, Schedule, methods
from recollect.methods.learner import Update
from recollect.nets.convnet import ConvNet
from recollect.nets.resnet import ResNet18
from recollect.nets.vit import vit_small_images
from recollect.rng import Key
from recollect.runs import resolve, run
from recollect.streams import Batch, Split, TaskData, TaskInfo

STREAM = make_stream((2, 2), per_class=10)
CPU = Runtime(torch.device("cpu"))
SMALL = {"attention_dim": 4, "fisher_samples": 5}


@pytest.fixture(autouse=True)
def device() -> Iterator[torch.device]:
    """Gradients are computed in this thread: torch starts those of devices once, perhaps before there was this one."""
    if not is_supported():
        pytest.skip("this version of torch takes no devices written in Python")
    with torch.autograd.set_multithreading_enabled(False):
        yield simulated_device()


@pytest.fixture
def can_choose(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """`device="simulated"` may be given wherever a device is named."""
    choose = Runtime.choose

    def also_simulated(name: str = "auto", *options: Any) -> Runtime:
        return replace(choose("cpu", *options), device=device) if name == NAME else choose(name, *options)

    monkeypatch.setattr(Runtime, "choose", staticmethod(also_simulated))


def made(name: str, options: Mapping[str, Any]) -> Learner[Any]:
    """A small learner; with `patience` one whose phases may end early, with their best weights."""
    epochs, patience = (2, options["patience"]) if "patience" in options else (1, 0)
    learner = make_learner(name, STREAM, **SMALL | options)
    learner.setup = replace(learner.setup, schedule=Schedule(epochs, 1e-2, patience))
    return learner


def taught(learner: Learner[Any], runtime: Runtime, **options: Any) -> Engine:
    training = Training(epochs=1, learning_rate=1e-2, batch_size=8)
    engine = Engine(learner, STREAM, training, runtime, 0, drift=True, checkpoint_seconds=0.0, **options)
    engine.run()
    return engine


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name].cpu(), expected[name])] == []


MIXTURES: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x + torch.ones(4),
    "sum with the host first": lambda x: torch.ones(4) + x,
    "product": lambda x: torch.ones(4, 4) @ x,
    "concatenation": lambda x: torch.cat([x, torch.ones(4)]),
    "stack": lambda x: torch.stack([torch.ones(4), x]),
    "index": lambda x: x[torch.tensor([0, 2])],
    "index of the host": lambda x: torch.ones(4)[x.long()],
    "mask": lambda x: x[torch.ones(4, dtype=torch.bool)],
    "masked fill": lambda x: x.masked_fill(torch.ones(4, dtype=torch.bool), 0.0),
    "choice": lambda x: torch.where(torch.ones(4, dtype=torch.bool), x, x),
    "gather": lambda x: x.gather(0, torch.tensor([0])),
    "labels": lambda x: F.cross_entropy(x[None], torch.tensor([1])),
    "weights": lambda x: nn.Linear(4, 2)(x),
    "writing to the host": lambda x: torch.ones(4).add_(x),
    "a generator of the host": lambda x: torch.rand(4, device=x.device, generator=torch.Generator()),
    "numpy": lambda x: x.numpy(),
    "an implicit copy": np.asarray,
    "double precision": lambda x: x.double(),
    "a copy that is not waited for": lambda x: x.copy_(torch.ones(4), non_blocking=True),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_the_simulated_device_refuses_what_accelerators_refuse(mixture: str, device: torch.device) -> None:
    with pytest.raises((RuntimeError, TypeError), match="device|generator|double|not waited for"):
        MIXTURES[mixture](torch.arange(4.0).to(device))


def test_the_simulated_device_takes_host_scalars_and_computes_as_the_cpu(device: torch.device) -> None:
    host = torch.arange(12.0).reshape(3, 4)
    x = host.to(device)
    assert (x.device.type, x.T.device.type, torch.zeros(2, device=device).device.type) == (NAME,) * 3
    assert torch.equal((x * torch.tensor(2.0) + 1).cpu(), host * 2 + 1)
    x[1:, ::2] += 5  # a view writes into its base
    host[1:, ::2] += 5
    assert torch.equal(x.cpu(), host)
    assert x.sum().item() == host.sum().item()
    x.zero_()
    assert host.any(), "the device must not share the host's memory"


class LeavesAMaskOnTheHost(Plain):
    def step(self, batch: Batch, update: Update) -> None:
        everything = torch.ones(len(batch.y))
        losses = F.cross_entropy(self.network(batch.x), batch.y, reduction="none")
        update((losses * everything).mean())


class RunsOnAnEmptyBatch(Plain):
    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        self.network(torch.zeros(0, *self.setup.image_shape, device=data.device))


@pytest.mark.parametrize(
    ("learner", "message"), [(LeavesAMaskOnTheHost, "same device"), (RunsOnAnEmptyBatch, "double precision")]
)
def test_a_method_that_works_only_on_the_cpu_fails(learner: type[Plain], message: str, device: torch.device) -> None:
    def made() -> Plain:
        plain = make_learner("finetune", STREAM)
        return learner(plain.network, plain.config, plain.setup)

    taught(made(), CPU)
    with pytest.raises((RuntimeError, TypeError), match=message):
        taught(made(), Runtime(device))


FORMS = [
    ("rfe", {"identity": "class-means", "views": 0, "pool": "mean", "teacher_statistics": "frozen"}),
    ("rfe", {"stride": 2, "teacher_statistics": "batch", "bias": False}),
    ("rfe", {"fixed_heads": (2, 2)}),
    ("finetune", {"patience": 1}),
    ("rfe-b", {"memory_target": "stored"}),
    ("rfe-p", {"views": 0, "last_tasks": 2}),
]


@pytest.mark.parametrize(("name", "options"), [(name, {}) for name in sorted(methods())] + FORMS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_method_trains_resumes_and_predicts_as_on_the_cpu(
    name: str, options: dict[str, Any], device: torch.device, tmp_path: Path
) -> None:
    expected = made(name, options)
    record = taught(expected, CPU, checkpoints=tmp_path / "cpu").record
    stop = StopAt(record.num_images * 3 // 4)
    with suppress(StopError):
        taught(made(name, options), Runtime(device), checkpoints=tmp_path / NAME, observer=stop)
    newest = checkpoint.newest(tmp_path / NAME)
    assert newest is not None, "the run was stopped before its first checkpoint"
    assert "phase" in newest.name or not record.num_images  # methods without training have no phase
    learner = made(name, options)
    found = taught(learner, Runtime(device), checkpoints=tmp_path / NAME).record
    for what in ("matrices", "validation", "drifted", "rectified", "scatter", "num_images", "at_start"):
        assert getattr(found, what) == getattr(record, what), what
    assert {tensor.device.type for tensor in learner.parameters()} == {NAME}
    assert_same(learner.state_dict(), expected.state_dict())
    assert_reads_alike(learner, expected, device)
    kept, also = (take_inventory(tmp_path / folder) for folder in (NAME, "cpu"))
    assert [(e.name, e.kind, e.num_bytes) for e in kept.entries] == [
        (e.name, e.kind, e.num_bytes) for e in also.entries
    ]
    assert [store.tasks for store in kept.stores] == [store.tasks for store in also.stores]


@torch.no_grad()
def assert_reads_alike(found: Learner[Any], expected: Learner[Any], device: torch.device) -> None:
    """Scores, the fast reader's and features are the CPU's."""
    images = STREAM.tasks[0].test.take(torch.arange(6))[0]
    x = STREAM.pixels.normalise(images)
    seen = STREAM.pixels.normalise(images.to(device))
    pairs = [(each.eval().scores, each.reader(without_chain=True)) for each in (found, expected)]
    for read, read_on_cpu in zip(*pairs, strict=True):
        mine, theirs = vars(read(seen)), vars(read_on_cpu(x))
        given = {key: tensor for key, tensor in theirs.items() if tensor is not None}
        assert_same({key: mine[key] for key in given}, given)
    assert torch.equal(found.features(seen)[0].cpu(), expected.features(x)[0])


@pytest.mark.usefixtures("can_choose")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_on_another_device_has_the_cpus_result_and_can_be_purged(tmp_path: Path) -> None:
    settings = {"backbone": "convnet", "epochs": 1, "width": 4, "memory": 8}
    config = resolve("tensors", "er", 0, settings, precision="fp32")
    results = {name: run(config, tmp_path / name, stream=STREAM, device=name) for name in ("cpu", NAME)}
    for part in ("til", "cil", "validation", "parameters", "values_held", "memory"):
        assert results[NAME][part] == results["cpu"][part], part
    assert results[NAME]["environment"]["device"] == NAME
    assert take_inventory(tmp_path / NAME).problems("reservoir") == []
    assert purge(tmp_path / NAME, 1) == purge(tmp_path / "cpu", 1) > 0


@pytest.mark.usefixtures("can_choose")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_learned_on_another_device_predicts_as_on_the_cpu(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 60, (40, 32, 32, 3))
    names = np.array(["a", "b", "c", "d"] * 10)
    images = (noise + (np.arange(40) % 4)[:, None, None, None] * 60).astype(np.uint8)
    models = {}
    for name in ("cpu", NAME):
        model = ContinualClassifier("convnet", image_size=32, epochs=2, device=name, precision="fp32", width=4)
        for task, classes in (("may", ["a", "b"]), ("june", ["c", "d"])):
            rows = np.isin(names, classes)
            model.learn((images[rows], names[rows]), task=task)
        models[name] = model.save(tmp_path / name)
    found, expected = models[NAME], models["cpu"]
    assert {tensor.device.type for tensor in found.reader.learner.parameters()} == {NAME}
    assert {tensor.device.type for tensor in found.model.tensors.values()} == {"cpu"}  # a model is kept on the host
    assert_same(ModelStore(tmp_path / NAME).load().tensors, ModelStore(tmp_path / "cpu").load().tensors)
    for task in (None, "may"):
        assert np.array_equal(found.predict_proba(images, task), expected.predict_proba(images, task))
        assert np.array_equal(found.features(images, task), expected.features(images, task))
    assert found.predict(images).tolist() == expected.predict(images).tolist()
    elsewhere = ContinualClassifier.load(tmp_path / "cpu", device=NAME)  # and the other way round
    assert np.array_equal(elsewhere.predict_proba(images), expected.predict_proba(images))


@pytest.mark.parametrize(
    "make", [lambda: ResNet18(width=4), lambda: vit_small_images((3, 16, 16))], ids=["resnet", "vit"]
)
def test_backbones_give_the_cpus_features_and_gradients(make: Callable[[], nn.Module], device: torch.device) -> None:
    x = torch.randn(4, 3, 16, 16)
    networks = []
    for runtime in (CPU, Runtime(device)):
        with Key(0).initialising():
            networks.append(make())
        runtime.place(networks[-1])
        networks[-1](x.to(runtime.device)).square().sum().backward()
    for expected, found in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        error = (found.grad.cpu() - expected.grad).norm()  # attention has another kernel on the CPU
        assert error <= 1e-4 * expected.grad.norm()


def test_no_network_is_given_an_empty_batch(device: torch.device) -> None:
    split = STREAM.tasks[0].train
    none = torch.zeros(0, dtype=torch.int64)
    assert list(TaskData(split, STREAM.pixels, device, 8, Key(0)).batches(none)) == []
    assert list(plain_batches(Split(split.images, none, none), STREAM.pixels, Runtime(device))) == []


def test_rfe_grows_and_trains_on_another_device_in_a_custom_loop(device: torch.device) -> None:
    x = torch.randn(8, 3, 16, 16)
    estimates = []
    for where in (CPU.device, device):
        with Key(0).initialising():
            backbone = ConvNet(3, 4).to(where)
            rfe = RFE(backbone.feature_dim, auxiliary_dim=8, projection_dim=4)
            for task in range(3):
                rfe.begin_task()
                if not task:
                    rfe.to(where)
                parameters = [*backbone.parameters(), *rfe.distill_parameters(), *rfe.retrospect_parameters()]
                adam = torch.optim.Adam(parameters, lr=1e-2)
                seen = x.to(where)
                f = backbone(seen)
                loss = f.square().mean() + rfe.drift_loss(seen, f) + rfe.distill_loss(seen, f.detach())
                (loss + rfe.retrospect_loss(seen, f.detach())).backward()
                adam.step()
                rfe.end_task(backbone)
        estimates.append([estimate.cpu() for estimate in rfe.rewind(seen, backbone(seen))])
    assert len(estimates[0]) == 3
    assert all(torch.equal(a, b) for a, b in zip(*estimates, strict=True))
