"""What is left to gain with the task unknown: a finished run of rfe-plus, read with true statistics of old classes.

The rule stores Gaussians of old classes and carries them along with the features. Here they are measured again with
today's network, on training images that the method no longer has.

python benchmarks/oracle.py RUN_FOLDER... --data-root DATA     adds to results/oracle.json, in place of earlier rows
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from pages.experiments import RESULTS
from recollect import load_run
from recollect.core.gaussian_rules import Anchored, Forward
from recollect.engine import Runtime
from recollect.engine.evaluation import evaluate, plain_batches
from recollect.methods.rfe import RFELearner
from recollect.runs.folder import code_version
from recollect.runs.loading import LoadedRun
from recollect.storage import write_json

RAW = RESULTS / "oracle.json"
ACCURACIES = ("til", "task_prediction", "cil")


def measure(folder: Path, data_root: Path | None) -> dict[str, Any]:
    """Accuracies on test images with the statistics that the run stored, and with true ones."""
    loaded, runtime = load_run(folder, data_root), Runtime.choose("cpu", "fp32", 1)
    stored = _accuracies(loaded, runtime)
    assert isinstance(loaded.learner, RFELearner)
    rule = loaded.learner.identity.rule
    forward = rule.today if isinstance(rule, Anchored) else rule
    assert isinstance(forward, Forward)
    _measure_again(forward, loaded, runtime)
    (rule if isinstance(rule, Anchored) else forward.discriminant).refresh()
    config = loaded.config
    return {
        "stream": config.stream, "method": config.method, "identity": config.method_options.identity,
        "seed": config.seed, "tasks": len(loaded.stream.tasks), "stored": stored, "true": _accuracies(loaded, runtime),
        "backbone": config.backbone, "components": config.method_options.components, "hash": config.hash, "commit": code_version(),
    }  # fmt: skip


@torch.no_grad()
def _measure_again(forward: Forward, loaded: LoadedRun, runtime: Runtime) -> None:
    statistics = forward.discriminant.statistics
    for buffer in statistics.buffers():
        buffer.zero_()
    for task in loaded.stream.tasks:
        batches = [*plain_batches(task.train, loaded.stream.pixels, runtime)]
        f = torch.cat([loaded.learner.network.backbone(batch.x) for batch in batches])
        forward.discriminant.add(f, torch.cat([batch.y for batch in batches]))  # components need all images at once


def _accuracies(loaded: LoadedRun, runtime: Runtime) -> dict[str, float]:
    found = evaluate(loaded.learner, loaded.stream.tasks, "test", loaded.stream.pixels, runtime)
    return {name: sum(value or 0.0 for value in found[name]) / len(found[name]) for name in ACCURACIES}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    rows = json.loads(RAW.read_text(encoding="utf-8"))["rows"] if RAW.exists() else []
    for folder in arguments.folders:
        row = measure(folder, arguments.data_root)
        rows = [*(earlier for earlier in rows if earlier["hash"] != row["hash"]), row]
        print(row, flush=True)
        write_json(RAW, {"rows": rows})
