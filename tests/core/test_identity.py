"""Rules for unknown tasks: what they store follows the space, and no class is preferred for the size of its task."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recollect.core import ClassStatistics, Lesson, Reading, Rule, make_rule
from recollect.core.gaussian_rules import Anchored

DIM = 4


def rule_of(name: str, head_weight: float = 0.0) -> Rule:
    return make_rule(name, DIM, stride=1, shrinkage=0.1, head_weight=head_weight)  # type: ignore[arg-type]


def draw(sizes: tuple[int, ...], per_class: int = 60) -> list[tuple[Tensor, Tensor]]:
    """Features of the classes of each task in one space, and labels counted from 0 in each task."""
    generator = torch.Generator().manual_seed(1)
    centres = 4 * torch.randn(sum(sizes), DIM, generator=generator)
    tasks, first = [], 0
    for size in sizes:
        labels = torch.arange(size).repeat_interleave(per_class)
        tasks.append((centres[first + labels] + torch.randn(len(labels), DIM, generator=generator), labels))
        first += size
    return tasks


def logits_of(sizes: tuple[int, ...], num: int) -> list[Tensor]:
    return [torch.zeros(num, size) for size in sizes]


def lda(spaces: list[tuple[Tensor, Tensor]], sizes: tuple[int, ...], z: Tensor) -> Tensor:
    """Discriminant of all classes from their true features."""
    statistics = ClassStatistics(DIM)
    statistics.grow(sum(sizes))
    for task, (features, labels) in enumerate(spaces):
        statistics.add(features, labels + sum(sizes[:task]))
    weight, bias = statistics.discriminant(0.1)
    return (z @ weight.T + bias).log_softmax(1)


def move(z: Tensor, task: int) -> Tensor:
    """Where the space is after a task: every task turns, stretches and shifts it."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(task):
        z = z @ (torch.eye(DIM) + 0.3 * torch.randn(DIM, DIM, generator=generator)) + torch.randn(
            DIM, generator=generator
        )
    return z


def test_forward_follows_an_affine_drift_exactly() -> None:
    sizes = (2, 3, 1)
    tasks, rule = draw(sizes), rule_of("forward")
    for task, (z, labels) in enumerate(tasks):
        rule.grow(sizes[task])
        now = Reading(move(z, task))
        rule.learn(Lesson(labels, now, Reading(move(z, task - 1)) if task else None))
    query = move(torch.cat([z for z, _ in tasks]), 2)
    expected = lda([(move(z, 2), labels) for z, labels in tasks], sizes, query)
    evidence = rule.evidence(Reading(query), logits_of(sizes, len(query)))
    assert torch.allclose(evidence.exp(), expected.exp(), atol=1e-3)
    assert (evidence.argmax(1) == expected.argmax(1)).all()


def test_nested_gives_probabilities_and_finds_the_class() -> None:
    sizes = (2, 3, 1)
    tasks, rule = draw(sizes), rule_of("lda")
    for task, (z, labels) in enumerate(tasks):
        rule.grow(sizes[task])
        rewound = [move(z, space) for space in range(task + 1)]  # a chain without error
        before = Reading(z, [move(z, space) for space in range(task)]) if task else None
        rule.learn(Lesson(labels, Reading(rewound[-1], rewound), before))
    query = torch.cat([z for z, _ in tasks])
    truth = torch.cat([labels + sum(sizes[:task]) for task, (_, labels) in enumerate(tasks)])
    reading = Reading(query, [move(query, space) for space in range(3)])
    evidence = rule.evidence(reading, logits_of(sizes, len(query)))
    assert torch.allclose(evidence.exp().sum(1), torch.ones(len(query)), atol=1e-4)
    assert (evidence.argmax(1) == truth).float().mean() > 0.9


def test_nested_follows_estimates_that_shrink() -> None:
    """With every task the estimates of old features get shorter; without following everything would look recent."""
    sizes = (2, 2, 2)
    tasks, rule = draw(sizes), rule_of("lda")

    def estimate(z: Tensor, space: int, now: int) -> Tensor:
        return move(z, space) * 0.6 ** (now - space)

    for task, (z, labels) in enumerate(tasks):
        rule.grow(sizes[task])
        rewound = [estimate(z, space, task) for space in range(task + 1)]
        before = Reading(z, [estimate(z, space, task - 1) for space in range(task)]) if task else None
        rule.learn(Lesson(labels, Reading(rewound[-1], rewound), before))
    query = torch.cat([z for z, _ in tasks])
    truth = torch.cat([labels + 2 * task for task, (_, labels) in enumerate(tasks)])
    evidence = rule.evidence(
        Reading(query, [estimate(query, space, 2) for space in range(3)]), logits_of(sizes, len(query))
    )
    assert (evidence.argmax(1) == truth).float().mean() > 0.9


def test_anchored_averages_a_space_that_moves_and_one_that_does_not() -> None:
    sizes = (2, 3, 1)
    tasks, rule, forward = draw(sizes), rule_of("anchored", head_weight=0.5), rule_of("forward")
    assert isinstance(rule, Anchored)
    rule.anchor.prior_losses.fill_(1e6)[2, 2] = 0.0  # images were held out before, and they chose temperature 4
    for task, (z, labels) in enumerate(tasks):
        before = Reading(move(z, task - 1)) if task else None
        for each in (rule, forward):
            each.grow(sizes[task])
            each.learn(Lesson(labels, Reading(move(z, task), first=z), before))
    assert rule.anchor.temperature == 4
    query = torch.cat([z for z, _ in tasks])
    logits = [torch.randn(len(query), size, generator=torch.Generator().manual_seed(2)) for size in sizes]
    statistics = ClassStatistics(DIM)
    statistics.grow(sum(sizes))
    for task, (z, labels) in enumerate(tasks):
        statistics.add(z, labels + sum(sizes[:task]))
    weight, bias = statistics.discriminant(rule.anchor.shrinkage)
    log_likelihoods = (query @ weight.T + bias) + forward.evidence(Reading(move(query, 2)), logits)
    classes = (log_likelihoods / (2 * 4.0)).softmax(1).split(sizes, dim=1)
    for _ in range(2):
        evidence = rule.evidence(Reading(move(query, 2), first=query), logits).exp().split(sizes, dim=1)
        for own, head, found in zip(classes, logits, evidence, strict=True):
            within = own * head.softmax(1).sqrt()
            assert torch.allclose(found, own.sum(1, keepdim=True) * within / within.sum(1, keepdim=True), atol=1e-4)
        rule.keep([torch.ones(size, dtype=torch.bool) for size in sizes])  # all of them: nothing changes


def test_the_temperature_is_chosen_by_images_that_the_anchor_was_not_trained_on() -> None:
    z, labels = draw((3,))[0]
    z = z + torch.randn(z.shape, generator=torch.Generator().manual_seed(3))
    for first, is_trained_on, chooses in ((None, True, False), (None, False, True), (z, True, True)):
        rule = rule_of("anchored")
        assert isinstance(rule, Anchored)
        rule.grow(3)
        rule.learn(Lesson(labels, Reading(z, first=first), is_trained_on=is_trained_on))
        assert bool(rule.anchor.prior_losses.any()) is chooses


@pytest.mark.parametrize("name", ["forward", "lda", "anchored"])
@pytest.mark.parametrize("sizes", [(6, 1, 1, 2), (2, 2, 10), (1, 1, 1)])
def test_no_class_is_preferred_for_the_size_of_its_task(name: str, sizes: tuple[int, ...]) -> None:
    tasks, rule = draw(sizes), rule_of(name, head_weight=0.5)
    for task, (z, labels) in enumerate(tasks):
        rule.grow(sizes[task])
        rule.learn(Lesson(labels, Reading(z, [z] * (task + 1), z), Reading(z, [z] * task) if task else None))
    query = torch.cat([z for z, _ in tasks])
    heads = logits_of(sizes, len(query))  # heads that cannot tell their classes apart
    answers = rule.evidence(Reading(query, [query] * len(sizes), query), heads).argmax(1)
    truth = torch.cat([labels + sum(sizes[:task]) for task, (_, labels) in enumerate(tasks)])
    counts = torch.bincount(answers, minlength=sum(sizes)).float()
    expected = torch.bincount(truth, minlength=sum(sizes)).float()
    assert (counts / expected).max() < 1.6
    assert (counts / expected).min() > 0.5


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("name", ["forward", "lda", "anchored"])
@pytest.mark.parametrize("sizes", [(2, 3, 1, 2), (5, 1, 1, 1)])
def test_tasks_between_anchors_are_followed_to_the_space_that_they_are_read_in(
    name: str, stride: int, sizes: tuple[int, ...]
) -> None:
    """A chain without error: a task between two anchors is read in the space of the next, and until then in today's."""
    tasks, rule = draw(sizes), rule_of(name)

    def estimates(z: Tensor, now: int) -> list[Tensor]:
        return [move(z, min(-(-task // stride) * stride, now)) for task in range(now + 1)]

    for task, (z, labels) in enumerate(tasks):
        rule.grow(sizes[task])
        before = Reading(move(z, task - 1), estimates(z, task - 1)) if task else None
        rule.learn(Lesson(labels, Reading(move(z, task), estimates(z, task), first=z), before))
    query, last = torch.cat([z for z, _ in tasks]), len(sizes) - 1
    reading = Reading(move(query, last), estimates(query, last), first=query)
    answers = rule.evidence(reading, logits_of(sizes, len(query))).argmax(1)
    truth = torch.cat([labels + sum(sizes[:task]) for task, (_, labels) in enumerate(tasks)])
    assert (answers == truth).float().mean() > 0.9
    shares = torch.bincount(answers, minlength=sum(sizes)) / torch.bincount(truth, minlength=sum(sizes))
    assert 0.6 < shares.min() <= shares.max() < 1.5


def test_log_probabilities_of_heads_are_added_with_their_weight() -> None:
    sizes = (2, 2)
    tasks = draw(sizes)
    query = torch.zeros(1, DIM)
    logits = [torch.tensor([[5.0, 0.0]]), torch.tensor([[0.0, 3.0]])]
    scores = []
    for head_weight in (0.0, 2.0):
        rule = rule_of("forward", head_weight)
        for task, (z, labels) in enumerate(tasks):
            rule.grow(2)
            rule.learn(Lesson(labels, Reading(z), Reading(z) if task else None))
        scores.append(rule.evidence(Reading(query), logits))
    heads = torch.cat([part.log_softmax(1) for part in logits], dim=1)
    assert torch.allclose(scores[1] - scores[0], 2 * heads, atol=1e-4)


@pytest.mark.parametrize("name", ["average", "class-means", "forward", "anchored", "lda"])
def test_dropped_classes_are_stored_nowhere_and_the_others_can_be_ranked(name: str) -> None:
    sizes, rule = (2, 3, 1, 2), rule_of(name)
    for task, (z, labels) in enumerate(draw(sizes)):
        rule.grow(sizes[task])
        rule.learn(Lesson(labels, Reading(z, [z] * (task + 1)), Reading(z, [z] * task) if task else None))
    z = torch.cat([z for z, _ in draw(sizes)])
    before = rule.evidence(Reading(z, [z] * 4), logits_of(sizes, len(z)))
    masks = [torch.tensor(mask) for mask in ([True, False], [True, True, True], [False], [False, True])]
    kept = torch.cat(masks)
    means = [buffer for key, buffer in rule.named_buffers() if "means" in key]
    dropped = [row for rows in means if len(rows) == len(kept) for row in rows[~kept]]
    rule.keep(masks)
    for row in dropped:
        assert not any((rows == row).all(1).any() for key, rows in rule.named_buffers() if "means" in key)
    after = rule.evidence(Reading(z, [z] * 4), logits_of((1, 3, 0, 1), len(z)))
    assert after.shape == (len(z), 5)
    if name == "forward":  # probabilities of the rest are scaled to sum to one
        assert torch.allclose(after, before[:, kept].log_softmax(1), atol=1e-4)
    if name not in ("average", "class-means"):  # every space is the same, so that all rules are one discriminant
        assert (after.argmax(1) == before[:, kept].argmax(1)).float().mean() > 0.98
    new = z[:10] + 20
    rule.grow(1)
    rule.learn(Lesson(torch.zeros(10).long(), Reading(new, [new] * 5), Reading(new, [new] * 4)))
    assert rule.evidence(Reading(new, [new] * 5), logits_of((1, 3, 0, 1, 1), 10)).shape == (10, 6)
    if name not in ("average", "class-means"):
        assert (rule.evidence(Reading(new, [new] * 5), logits_of((1, 3, 0, 1, 1), 10)).argmax(1) == 5).all()
