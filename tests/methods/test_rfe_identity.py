"""How RFE ranks the classes of all tasks, and which options are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.methods._rfe_config import RFEConfig
from recollect.rng import Key
from recollect.streams import TaskData
from tests.support import make_learner, make_stream, teach, warm

FORMS = ["rfe", "rfe-p", "rfe-b", "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux", "rfe-affine"]


@pytest.mark.parametrize("name", FORMS)
def test_class_incremental_average_is_the_concatenated_softmaxes_over_n(name: str) -> None:
    stream = make_stream((2, 1, 3))
    learner = make_learner(name, stream)
    with pytest.warns(UserWarning, match="cannot rank a task of one class"):
        teach(learner, stream)
    learner.eval()
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(5))[0])
    with torch.no_grad():
        scores = learner.scores(x)
        f = learner.network.backbone(x)
        chain = learner.rfe.chain
        estimates = [f]
        for t in (1, 0):
            h = chain.auxiliaries[t](x) if chain.retrospectors[t].uses_auxiliary else None
            estimates.insert(0, chain.retrospectors[t](estimates[0], h))
        logits = [head(e) for head, e in zip(learner.network.heads, estimates, strict=True)]
        assert torch.allclose(scores.til, torch.cat(logits, 1), atol=1e-6)
        assert torch.allclose(scores.cil, torch.cat([z.softmax(1) for z in logits], 1) / 3, atol=1e-6)
        assert torch.allclose(
            scores.til_without_chain, torch.cat([head(f) for head in learner.network.heads], 1), atol=1e-6
        )


def test_class_means_rank_tasks_of_one_class() -> None:
    stream = make_stream((1, 1, 1))
    learner = make_learner("rfe", stream, identity="class-means", epochs=3)
    engine = teach(learner, stream)
    assert engine.record.matrices["cil"][0][0] == 100
    means = learner.identity.rule.get_buffer("means_2")
    data = TaskData(stream.tasks[2].train, stream.pixels, torch.device("cpu"), 4, Key(0))
    learner.eval()
    with torch.no_grad():
        f = torch.cat([learner.network.backbone(batch.x) for batch in data.batches()])
    assert torch.allclose(means[0], f.mean(0), atol=1e-5)


@pytest.mark.filterwarnings("ignore:identity='class-means' favours tasks of few classes")
def test_class_means_follow_the_space_that_a_task_is_read_in() -> None:
    class Affine(nn.Sequential):
        feature_dim, nonnegative = 6, False

    stream, backbone = make_stream((2, 1, 2, 2, 1, 2)), Affine(nn.Flatten(), nn.Linear(768, 6))
    learner = make_learner("rfe", stream, backbone=backbone, identity="class-means", stride=3).eval()
    spaces: list[nn.Module] = []
    plain = []  # the images and labels of each task
    for task in stream.tasks:
        index, data = task.info.index, TaskData(task.train, stream.pixels, torch.device("cpu"), 4, Key(0))
        plain.append([torch.cat(parts) for parts in zip(*((b.x, b.y) for b in data.batches()), strict=True)])
        learner.begin_task(task.info)
        with torch.no_grad():
            backbone[1].bias += torch.randn(6)  # a drift that is the same for all images, so the estimate is exact
        learner.end_task(task.info, data)
        spaces.append(copy.deepcopy(backbone))
        for past, (x, y) in enumerate(plain):
            f = spaces[learner.rfe.chain.domain(past)](x)
            expected = torch.stack([f[y == unit].mean(0) for unit in y.unique()])
            assert torch.allclose(learner.identity.rule.get_buffer(f"means_{past}"), expected, atol=1e-5), (index, past)


@pytest.mark.parametrize("identity", ["average", "class-means", "forward", "anchored", "lda"])
def test_identity_retrospectors_score_like_no_chain(identity: str) -> None:
    """What the chain is measured against: replaced by the identity it reads as if it were not there."""

    class Same(nn.Module):
        uses_auxiliary = False

        def forward(self, f: Tensor, h: Tensor | None) -> Tensor:
            return f

    stream = make_stream((2, 2, 2))
    learner = make_learner("rfe", stream, alpha=0.0, epochs=3, identity=identity)
    warm(learner, stream, 3)
    x = stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(8))[0])
    with torch.no_grad():
        scores = learner.eval().scores(x)
        assert not torch.allclose(scores.til[:, :4], scores.til_without_chain[:, :4])
        learner.rfe.chain.retrospectors = nn.ModuleList(Same() for _ in range(2))
        scores = learner.eval().scores(x)
    assert torch.equal(scores.til, scores.til_without_chain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 2, "memory_target": "stored"}, "use memory_target=view"),
        ({"end_to_end": True, "alpha": 0.0}, "give it a positive alpha"),
    ],
)
def test_inconsistent_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RFEConfig(**options)


def test_small_images_are_refused_before_training() -> None:
    with pytest.raises(UserError, match=r"at least 16 pixels, got \(8, 8\)"):
        make_learner("rfe", make_stream(size=8))


@pytest.mark.parametrize(
    ("identity", "statistics"),
    [
        ("forward", "discriminant.statistics"),
        ("anchored", "today.discriminant.statistics"),
        ("lda", "spaces.0.statistics"),
    ],
)
def test_without_correct_drift_gaussians_of_old_classes_stay_as_they_were(identity: str, statistics: str) -> None:
    stream = make_stream((2, 2))
    for corrects in (True, False):
        learner = make_learner("rfe-plus", stream, identity=identity, correct_drift=corrects)
        warm(learner, stream, 1)
        before = learner.identity.rule.get_buffer(f"{statistics}.means").clone()
        teach(learner, stream, num_learned=1)
        after = learner.identity.rule.get_buffer(f"{statistics}.means")[:2]
        assert torch.equal(before, after) is not corrects


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1)])
def test_class_means_need_only_one_image_per_class(sizes: tuple[int, ...]) -> None:
    stream = make_stream(sizes, per_class=1)
    learner = make_learner("rfe", stream, identity="class-means")
    with pytest.warns(UserWarning, match="no validation images"):
        teach(learner, stream)
    x = stream.pixels.normalise(stream.tasks[0].train.take(torch.arange(1))[0])
    with torch.no_grad():
        p = learner.eval().scores(x).cil
    assert bool(torch.isfinite(p).all())
    assert p.shape == (1, sum(sizes))


@pytest.mark.filterwarnings("ignore:identity='class-means' favours tasks of few classes")
def test_fixed_heads_rank_only_learned_classes() -> None:
    stream = make_stream((2, 3))
    for identity in ("average", "class-means"):
        learner = make_learner("rfe", stream, fixed_heads=(2, 3), identity=identity)
        warm(learner, stream, 1)
        with torch.no_grad():
            cil = learner.eval().scores(stream.pixels.normalise(stream.tasks[0].test.take(torch.arange(3))[0])).cil
        assert cil.shape == (3, 2)
        if identity == "average":
            assert cil.sum(1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
