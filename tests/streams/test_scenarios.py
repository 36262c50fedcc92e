"""Streams beyond class splits: changing inputs, returning classes, blurry borders, unequal classes."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support import make_learner, teach

from recollect.engine import Runtime
from recollect.engine.evaluation import evaluate
from recollect.errors import UserError
from recollect.methods import Scores
from recollect.report.scenario import scenario
from recollect.rng import Key
from recollect.runs import RunConfig, resolve
from recollect.streams import Split, Stream, StreamOptions, open_stream, stream_from_tensors
from recollect.streams.shifts import shifted


def digits(**changes: object) -> Stream:
    return open_stream("split-digits", StreamOptions(**({"crop_padding": 2, "tasks": 3} | changes)))  # type: ignore[arg-type]


def pictures(*splits: Split) -> list[bytes]:
    return [image.tobytes() for split in splits for image in split.take(torch.arange(len(split)))[0].numpy()]


def sizes(stream: Stream, task: int) -> dict[str, int]:
    """Training and validation images of each class of a task."""
    info, first = stream.tasks[task].info, sum(other.info.num_classes for other in stream.tasks[:task])
    labels = torch.cat([stream.tasks[task].train.labels, stream.tasks[task].validation.labels])
    return {name: int((labels == first + i).sum()) for i, name in enumerate(info.class_names)}


@pytest.mark.parametrize("shift", ["rotated", "permuted", "corrupted"])
def test_domains_have_all_classes_and_their_own_version_of_the_same_images(shift: str) -> None:
    stream = digits(shift=shift, train_per_class=10)
    first, second, third = stream.tasks
    assert [task.info.class_names for task in stream.tasks] == [tuple("0123456789")] * 3
    assert set(second.train.labels.tolist()) == set(range(10, 20))
    assert pictures(first.train) == pictures(digits(tasks=1, train_per_class=10).tasks[0].train)
    for task in (second, third):
        assert len(task.train) == len(first.train)
        assert not set(pictures(task.train)) & set(pictures(first.train))
    assert pictures(second.test) != pictures(third.test)
    again = digits(shift=shift, train_per_class=10)
    assert pictures(again.tasks[2].test) == pictures(third.test)


def test_a_rotation_by_a_right_angle_moves_pixels_exactly() -> None:
    image = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    image[0, 0, 0, 1] = 200
    turned = shifted(image, "rotated", 1, 2, Key(0), "train")
    assert torch.equal(turned, torch.rot90(image, 1, (2, 3))) or torch.equal(turned, torch.rot90(image, -1, (2, 3)))


def test_a_permutation_is_the_same_for_training_and_test_images_and_differs_between_tasks() -> None:
    ramp = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8)
    versions = [shifted(ramp, "permuted", task, 3, Key(0), split) for task in (1, 2) for split in ("train", "test")]
    assert torch.equal(versions[0], versions[1])
    assert not torch.equal(versions[0], versions[2])
    assert sorted(versions[0].flatten().tolist()) == list(range(64))


def test_hue_turns_and_keeps_the_brightness() -> None:
    red = torch.tensor([150, 60, 60], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(1, 3, 4, 4)
    turned = shifted(red, "coloured", 1, 3, Key(0), "train").float()[0, :, 0, 0]
    luma = torch.tensor([0.299, 0.587, 0.114])
    assert float(luma @ turned) == pytest.approx(float(luma @ red[0, :, 0, 0].float()), abs=1)
    assert turned[0] < turned[1:].max()
    with pytest.raises(UserError, match="these have 1 channel"):
        digits(shift="coloured")


def test_noise_differs_between_images_and_splits_and_has_its_deviation() -> None:
    grey = torch.full((4, 1, 32, 32), 128, dtype=torch.uint8)
    train, test = (shifted(grey, "corrupted", 1, 3, Key(0), split).float() for split in ("train", "test"))
    assert not torch.equal(train, test)
    assert not torch.equal(train[0], train[1])
    assert float((train - 128).std()) == pytest.approx(38, rel=0.05)


def test_classes_return_with_new_images_and_all_their_test_images() -> None:
    stream = digits(tasks=[["0", "1"], ["1", "2"], ["1"]], train_per_class=31)
    assert [sizes(stream, task)["1"] for task in range(3)] == [11, 10, 10]
    parts = [set(pictures(task.train, task.validation)) for task in stream.tasks]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]
    assert set(pictures(stream.tasks[2].test)) < set(pictures(stream.tasks[0].test))
    drawn = digits(repeats=2)
    assert [task.info.num_classes for task in drawn.tasks] == [4, 5, 5]
    assert set(drawn.tasks[1].info.class_names[3:]) < set(drawn.tasks[0].info.class_names)
    with pytest.raises(UserError, match="is in 3 tasks but has 2 training images"):
        digits(tasks=[["0", "1"], ["1", "2"], ["1"]], train_per_class=2)


def test_blurry_tasks_see_some_images_of_the_others_and_lose_none() -> None:
    stream, sharp = digits(blur=0.2, train_per_class=100), digits(train_per_class=100)
    everything = [sorted(pictures(*(s for t in x.tasks for s in (t.train, t.validation)))) for x in (stream, sharp)]
    assert everything[0] == everything[1]
    for task, own in zip(stream.tasks, sharp.tasks, strict=True):
        counts = sizes(stream, task.info.index)
        for name, count in counts.items():
            assert count == (80 if name in own.info.class_names else 10)
        assert len(counts) == 10
        assert sorted(pictures(task.test)) == sorted(pictures(own.test))


def test_imbalanced_classes_fall_exponentially_in_an_order_drawn_from_the_seed() -> None:
    stream = digits(imbalance=10.0, train_per_class=100)
    counts = [count for task in range(3) for count in sizes(stream, task).values()]
    assert sorted(counts, reverse=True) == [round(100 * 10 ** (-rank / 9)) for rank in range(10)]
    assert counts != sorted(counts, reverse=True)


def test_a_class_has_one_unit_in_the_view_of_a_single_classifier() -> None:
    stream = digits(tasks=[["0", "1"], ["1", "2"]], train_per_class=10)
    single = stream.with_one_unit_per_class()
    assert [task.info.units for task in single.tasks] == [(0, 1), (1, 2)]
    assert single.new_units() == [2, 1]
    assert set(single.tasks[1].train.labels.tolist()) == {1, 2}
    assert torch.equal(single.tasks[1].train.labels == 1, stream.tasks[1].train.labels == 2)
    assert digits().with_one_unit_per_class() is not stream
    plain = digits()
    assert plain.with_one_unit_per_class() is plain


def test_the_loss_of_a_task_is_over_the_newest_task_that_has_the_label() -> None:
    stream = digits(tasks=[["0", "1"], ["1", "2"], ["3"]], train_per_class=4).with_one_unit_per_class()
    learner = make_learner("finetune", stream)
    for task in stream.tasks:
        learner.begin_task(task.info)
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).expand(4, 4)
    masked = learner.network.within_task(logits, torch.arange(4))
    together = [[0, 1], [1, 2], [1, 2], [3]]
    expected = [
        [value if unit in units else -math.inf for unit, value in enumerate((1.0, 2.0, 3.0, 4.0))] for units in together
    ]
    assert masked.tolist() == expected
    assert [len(list(learner.network.heads_of(task))) for task in range(3)] == [1, 2, 1]


class Fixed:
    """Scores that depend on an image's brightness alone, for an accuracy that can be counted by hand."""

    def __init__(self, rows: dict[int, list[float]]) -> None:
        self.rows = rows

    def __call__(self, x: torch.Tensor) -> Scores:
        scores = torch.tensor([self.rows[round(float(image.mean() * 255))] for image in x])
        return Scores(til=scores, cil=scores)


def test_any_unit_of_the_right_class_is_right_where_the_task_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task 1 has cat and dog, task 2 dog and fish: four units of a method with a head for each task."""
    levels = torch.tensor([0, 100, 200], dtype=torch.uint8)  # cat, dog, fish
    images = levels[:, None, None, None].expand(3, 3, 16, 16).contiguous()
    labels, names = torch.arange(3), ["cat", "dog", "fish"]
    stream = stream_from_tensors(
        images.repeat(2, 1, 1, 1),
        labels.repeat(2),
        images,
        labels,
        tasks=[names[:2], names[1:]],
        class_names=names,
        validation=0.0,
        crop_padding=0,
    )
    plain = type(stream.pixels)((0.0,) * 3, (1.0,) * 3, 0, False)
    learner = make_learner("rfe", stream)
    for task in stream.tasks:
        learner.begin_task(task.info)
    # cat is taken for a dog of task 2; dog for a dog of task 2; fish for itself
    rows = {0: [1.0, 0.0, 2.0, 0.0], 100: [0.0, 1.0, 2.0, 0.0], 200: [0.0, 1.0, 2.0, 3.0]}
    monkeypatch.setattr(type(learner), "reader", lambda *args, **kwargs: Fixed(rows))
    accuracies = evaluate(learner, stream.tasks, "test", plain, Runtime.choose("cpu", "fp32"))
    assert accuracies["til"] == [100.0, 100.0]
    assert accuracies["cil"] == [50.0, 100.0]  # the dog of task 1 counts as right, though its unit is task 2's
    assert accuracies["task_prediction"] == [None, None]  # dog has no task of its own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shift": "mirrored"}, "got 'mirrored'"),
        ({"shift": "rotated", "blur": 0.1}, "every task has all classes"),
        ({"shift": "corrupted", "tasks": 9}, "6 tasks at most, got tasks=9"),
        ({"blur": 1.0}, "from 0 to 0.9, got 1.0"),
        ({"blur": 0.1, "repeats": 1}, "choose one of them"),
        ({"repeats": -1}, "got -1"),
        ({"imbalance": 0.5}, "got 0.5"),
    ],
)
def test_bad_scenarios_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        digits(**changes)


def test_scenarios_are_named_and_configs_without_one_keep_their_hash() -> None:
    plain = resolve("split-digits", "rfe", 0)
    assert "shift" not in plain.to_json()["stream"]
    assert plain.hash == "cd57465bfab0e7d8"  # as before these options existed
    rotated = resolve("split-digits", "rfe", 0, {"shift": "rotated", "imbalance": 5})
    assert rotated.to_json()["stream"]["shift"] == "rotated"
    assert rotated.non_default_options()["stream"] == {"shift": "rotated", "imbalance": 5.0}
    assert RunConfig.from_json(rotated.to_json()) == rotated
    assert scenario(plain.to_json()["stream"]) == "class-incremental"
    assert scenario(rotated.to_json()["stream"]) == "domain-incremental (rotated), imbalanced (5 to 1)"
    assert scenario({"tasks": [["a"], ["a", "b"]]}) == "class-incremental, repeating classes"
    assert scenario({"tasks": 2, "blur": 0.1}) == "class-incremental, blurry (10%)"


def test_statistics_of_a_returning_class_are_those_of_all_its_images() -> None:
    """Streaming LDA over tasks that share a class has the means of one pass over everything."""
    stream = digits(tasks=[["0", "1"], ["1", "2"]], train_per_class=20).with_one_unit_per_class()
    learner = make_learner("slda", stream)
    teach(learner, stream)
    together = Split.concatenate([task.train for task in stream.tasks])
    images, labels = together.take(torch.arange(len(together)))
    with torch.no_grad():
        f = learner.network.backbone(stream.pixels.normalise(images))
    means = torch.stack([f[labels == unit].mean(0) for unit in range(3)])
    torch.testing.assert_close(learner.discriminant.statistics.means.float(), means, rtol=1e-4, atol=1e-5)


def test_samples_of_a_returning_class_are_stored_with_the_task_that_showed_them() -> None:
    stream = digits(tasks=[["0", "1"], ["1", "2"]], train_per_class=10).with_one_unit_per_class()
    learner = make_learner("er", stream, memory=40)
    teach(learner, stream)
    (memory,) = learner.memories()
    tasks = dict(zip(map(bytes, memory.images.flatten(1).numpy()), memory.tasks.tolist(), strict=True))
    for task in stream.tasks:
        shown = pictures(task.train)
        assert shown
        assert {tasks[image] for image in shown} == {task.info.index}
