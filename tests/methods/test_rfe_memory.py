"""The samples of RFE-P and RFE-B: what is stored, and how it is recalled."""

from __future__ import annotations

import pytest
import torch

from recollect.rng import Key
from recollect.streams import Stream
from tests.support import (
    after_task,
    batch_of,
    make_learner,
    make_stream,
    mse,
    recall_loss,
    teach,
    warm,
)


@pytest.mark.parametrize(("stride", "target"), [(1, "view"), (1, "stored"), (2, "view")])
def test_recall_compares_each_sample_in_its_own_domain(stride: int, target: str) -> None:
    """Sample by sample: newest domain against the teacher on the same view, older ones against what was stored."""
    stream = make_stream((2, 2, 2, 2))
    learner = after_task("rfe-b", stream, 3, memory=30, stride=stride, memory_target=target, views=0)
    batch, chain, memory = batch_of(stream, 3), learner.rfe.chain, learner.past.memory
    learner.eval()
    newest_domain = {1: 2, 2: 2}[stride]
    past = memory.sample(8, batch.rng("recall"))
    views, plain = batch.augment(past, "recalled view"), batch.normalise(past.images)
    errors, domains = [], set()
    for i in range(8):
        domain = int(past.values["domain"][i])
        domains.add(domain)
        is_newest = domain >= newest_domain
        x = (views if is_newest or target == "stored" else plain)[i : i + 1]
        f = chain.rewind(x, learner.network.backbone(x), to=min(domain, newest_domain))
        wanted = learner.rfe.anchor(x) if is_newest and target == "view" else past.values["feature"][i : i + 1]
        errors.append(mse(f, wanted))
    assert len(domains) > 1
    assert torch.allclose(recall_loss(learner, stream, 3, batch), torch.stack(errors).mean(), atol=1e-5)


@pytest.mark.parametrize("target", ["view", "stored"])
def test_recall_on_cached_views_equals_recall_on_the_same_views(target: str) -> None:
    """The same naive sum, over the views that were drawn for the samples when the phase began."""
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-b", stream, 2, memory=20, memory_target=target, views=3)
    batch, chain, memory = batch_of(stream, 2), learner.rfe.chain, learner.past.memory
    learner.eval()
    moves = [stream.pixels.draw(20, (Key(5) / view).generator()) for view in range(3)]
    slots = memory.sample(8, batch.rng("recall")).slots
    chosen = torch.randint(0, 3, (8,), generator=batch.rng("recalled view")).tolist()
    errors, kinds = [], set()
    for slot, view in zip(slots.tolist(), chosen, strict=True):
        image, domain = memory.images[slot : slot + 1], int(memory.get_buffer("domain")[slot])
        kinds.add(domain)
        moved = stream.pixels.crop_and_flip(image, moves[view].at(torch.tensor([slot])))
        x = stream.pixels.normalise(moved if domain == 1 or target == "stored" else image)
        f = chain.rewind(x, learner.network.backbone(x), to=domain)
        stored = memory.get_buffer("feature")[slot : slot + 1]
        errors.append(mse(f, learner.rfe.anchor(x) if domain == 1 and target == "view" else stored))
    assert kinds == {0, 1}
    loss = recall_loss(learner, stream, 2, batch, memory_key=Key(5))
    assert torch.allclose(loss, torch.stack(errors).mean(), atol=1e-5)


def test_a_memory_too_large_for_the_cache_gets_fresh_views() -> None:
    stream = make_stream((2, 2, 2))
    learner = after_task("rfe-b", stream, 2, memory=20, views=3)
    batch = batch_of(stream, 2)
    fresh = recall_loss(learner, stream, 2, batch, views=0)
    tight = recall_loss(learner, stream, 2, batch, max_bytes=100)
    assert torch.equal(fresh, tight)
    assert not torch.equal(fresh, recall_loss(learner, stream, 2, batch))


def test_stored_features_are_taken_on_the_plain_image_at_the_end_of_the_own_task() -> None:
    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe-b", stream, memory=12)
    kept = []
    for num in range(1, 4):
        part = Stream(stream.name, stream.tasks[:num], stream.pixels, stream.image_shape)
        learner = make_learner("rfe-b", stream, memory=12)
        teach(learner, part)
        memory = learner.past.memory
        now = memory.tasks[: len(memory)] == num - 1
        x = stream.pixels.normalise(memory.images[: len(memory)][now])
        learner.eval()
        with torch.no_grad():
            assert torch.allclose(
                memory.get_buffer("feature")[: len(memory)][now], learner.network.backbone(x), atol=1e-5
            )
        kept.append(
            {image.numpy().tobytes(): f for image, f in zip(memory.images, memory.get_buffer("feature"), strict=True)}
        )
    for image in kept[0].keys() & kept[2].keys():
        assert torch.equal(kept[0][image], kept[2][image])  # taken once


@pytest.mark.parametrize(("last_tasks", "memory"), [(1, 6), (2, 6), (2, 500)])
def test_rfe_p_holds_only_the_last_tasks_after_each_task(last_tasks: int, memory: int) -> None:
    stream = make_stream((2, 2, 2, 2))
    for num in range(1, 5):
        learner = make_learner("rfe-p", stream, memory=memory, last_tasks=last_tasks)
        teach(learner, Stream(stream.name, stream.tasks[:num], stream.pixels, stream.image_shape))
        held = learner.past.memory
        assert set(held.tasks[: len(held)].tolist()) == set(range(max(0, num - last_tasks), num))
        assert len(held) <= memory
        own = stream.tasks[num - 1].train
        images = {image.numpy().tobytes() for image in own.take(torch.arange(len(own)))[0]}
        newest = held.images[: len(held)][held.tasks[: len(held)] == num - 1]
        assert {image.numpy().tobytes() for image in newest} <= images


def test_plain_rfe_keeps_no_samples() -> None:
    learner = make_learner("rfe", make_stream())
    teach(learner, make_stream())
    assert learner.memories() == []
    assert not any(tensor.dtype == torch.uint8 for tensor in learner.state_dict().values())


def test_rfe_b_offers_each_image_once() -> None:
    stream = make_stream((2, 2))
    learner = make_learner("rfe-b", stream, epochs=3)
    warm(learner, stream, 2)
    assert learner.past.memory.num_offered == sum(len(task.train) for task in stream.tasks)
