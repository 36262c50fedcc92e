"""Tasks that RFE learns without training the backbone: statistics and a head alone."""

from __future__ import annotations

import pytest
import torch

from recollect.streams import Stream
from tests.support import make_learner, make_stream, teach


def images(stream: Stream) -> torch.Tensor:
    return stream.pixels.normalise(torch.cat([task.test.take(torch.arange(6))[0] for task in stream.tasks]))


@pytest.mark.parametrize("components", [0, 2])
def test_a_backbone_that_never_moves_reads_as_streaming_lda(components: int) -> None:
    stream = make_stream((2, 1, 3))
    rfe = make_learner("rfe-plus", stream, identity="anchored", components=components)
    rfe.adapts = False
    slda = make_learner("slda", stream, components=components)
    for learner in (rfe, slda):
        teach(learner, stream)
    with torch.no_grad():
        ours, theirs = (learner.eval().scores(images(stream)).cil for learner in (rfe, slda))
    assert torch.allclose(ours, theirs.log_softmax(1), atol=1e-5)
    assert rfe.rfe.chain.num_hops == 0
    assert rfe.parameter_counts().inference < 1.8 * slda.parameter_counts().inference


@pytest.mark.filterwarnings("ignore:identity='class-means' favours tasks of few classes")
@pytest.mark.parametrize("identity", ["anchored", "forward", "class-means", "lda"])
@pytest.mark.parametrize("adapted", [(False, True, False, True), (True, False, False, True)])
def test_tasks_with_and_without_adaptation_alternate(identity: str, adapted: tuple[bool, ...]) -> None:
    """What is read of a model whose parts were learned in turn does not depend on how often it was rebuilt."""
    stream = make_stream((2, 2, 1, 2))
    learner = make_learner("rfe-plus", stream, identity=identity)
    kept = learner.begin_task
    order = iter(adapted)

    def begin(task: object) -> None:
        learner.adapts = next(order)
        kept(task)

    learner.begin_task = begin
    teach(learner, stream)
    assert learner.rfe.chain.num_hops == sum(adapted[1:])
    again = make_learner("rfe-plus", stream, identity=identity, seed=1)
    for task, adapts in zip(stream.tasks, adapted, strict=True):
        again.adapts = adapts
        again.begin_task(task.info)
    again.load_deployable_state(learner.deployable_state())
    x = images(stream)
    with torch.no_grad():
        before, after = learner.eval().scores(x), again.eval().scores(x)
    assert torch.equal(before.cil, after.cil)
    assert torch.equal(before.til, after.til)
