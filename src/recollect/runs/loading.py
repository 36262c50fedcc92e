"""A finished or interrupted run, back in memory.

>>> import recollect, torch
>>> config = recollect.resolve("split-digits", "rfe", 0, {"epochs": 1, "retrospect_epochs": 1})
>>> result = recollect.run(config, "digits", device="cpu")
>>> loaded = load_run("digits")
>>> x = loaded.stream.pixels.normalise(loaded.stream.tasks[0].test.take(torch.arange(8))[0])
>>> today, estimates = loaded.learner.features(x)  # of RFE: now, and in the feature space of each task
>>> len(estimates), today.shape
(5, torch.Size([8, 64]))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from recollect.engine import checkpoint
from recollect.errors import UserError
from recollect.methods import Learner
from recollect.results import find_results
from recollect.runs.config import RunConfig
from recollect.runs.folder import RunFolder
from recollect.runs.run import as_pretrained, create_learner, for_learner, given_or_opened, read_run
from recollect.streams import Stream


class LoadedRun(NamedTuple):
    """A run's parts; the learner is as the run's newest checkpoint left it, ready to read images."""

    config: RunConfig
    stream: Stream
    learner: Learner[Any]
    result: dict[str, Any] | None
    """None while the run is unfinished."""


def load_run(
    folder: str | Path,
    data_root: str | Path | None = None,
    *,
    method: str | None = None,
    stream: Stream | None = None,
    backbone: nn.Module | None = None,
) -> LoadedRun:
    """Load a run's learner, stream and result; `data_root` replaces the data folder that the run was started with.

    The folder is not changed. A damaged newest checkpoint is refused, since an older one does not match the result.
    If the method is not registered but comes from a Python file, name that file again as `method`; it is run. A
    `stream` of tensors and a `backbone` of one's own are given again, as to `run`; the weights of the run are copied
    into that backbone.
    """
    folder = Path(folder)
    config, remembered = read_run(folder, method)
    root = Path(data_root) if data_root else remembered
    stream = for_learner(given_or_opened(stream, config, root), config.method_row.learner)
    learner = create_learner(config, stream, backbone)
    stream = as_pretrained(stream, learner)
    RunFolder(folder, config).check_data(stream.describe(), "give the data of the run")
    loaded = checkpoint.load_newest(folder / "checkpoint", config.hash)
    if loaded is None:
        raise UserError(f"{folder} has no checkpoint yet; resume it with recollect resume {folder}")
    tensors, state = loaded
    position = state["position"]
    begun = len(stream.tasks) if learner.together else position["lessons"] + ("phase" in position)
    for task in stream.tasks[:begun]:
        learner.begin_task(task.info)
    prefix = "learner."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    shapes = {name: tensor.shape for name, tensor in learner.state_dict().items()}
    wrong = [name for name in {**shapes, **own} if name not in own or shapes.get(name) != own[name].shape]
    if wrong:
        given = "backbone given" if backbone is not None else "method as it is installed"
        raise UserError(f"the {given} does not fit the weights of {folder}: {wrong[0]} differs; give that of the run")
    learner.load_state_dict(own)
    results = find_results([folder])
    return LoadedRun(config, stream, learner.eval(), next(iter(results.values()), None))
